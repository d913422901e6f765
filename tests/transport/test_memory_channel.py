"""The in-process channel keeps to the contract."""

from channel_contract import ChannelContract

from ftrt.transport.memory import pair


class TestMemory(ChannelContract):
    def ends(self, slots=8, slot_bytes=4096):
        return pair(slots, slot_bytes)

    def seal(self, sender):
        sender.seal()

    def corrupt(self, sender, frame):
        sender.corrupt(frame)
