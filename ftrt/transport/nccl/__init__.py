"""The plane between GPUs: frames of slots travel over NCCL and are checked where they arrive.

================ =================================================================================
module           what it is
================ =================================================================================
``codes``        every result code: what it means and what ftrt does about it
``capabilities`` what a loaded library can do, and where RCCL differs from NCCL
``lib``          the one module that calls NCCL
``fake``         a library in plain Python with the same states and rules, across real processes
``states``       the life cycle of a communicator as a table, and every wait in it with a deadline
``teardown``     the end of communicators in the right order, in the background, with a deadline
``kernels``      numba.cuda kernels that write, clear and check slots
``device``       what the plane needs of a GPU; ``cuda`` is one, ``fake_device`` another
``control``      the page that both ends of a channel share: announcements, credit, the end
``send, recv``   the two ends of a channel
``standby``      communicators that are connected before they are needed
``plane``        which channels a process has, and over which communicator each goes
================ =================================================================================
"""
