"""The long form goes on where it stopped, and its last sixth is of jobs that may shrink."""

import json

from ftrt.sim import long


def test_it_stops_goes_on_and_writes_its_page(tmp_path):
    state, page = tmp_path / "state.json", tmp_path / "page.md"
    page.write_text(f"old\n\n{long.MUTATIONS_HEAD}\n\nkept\n")
    asked = ["--seeds", "100", "--state", str(state), "--page", str(page)]
    assert long.main([*asked, "--limit-s", "0.01"]) == 0
    begun = json.loads(state.read_text())["tally"]
    assert begun["seeds"] == 100 and not begun["inherited"]
    assert page.read_text().startswith("old")
    assert long.main(asked) == 0
    ended = json.loads(state.read_text())["tally"]
    assert ended["seeds"] == 120 and ended["inherited"] and not ended["violations"]
    text = page.read_text()
    assert "120 seeds at 3 to 9 ranks: 0 violations" in text and "last 20 of them" in text
    assert text.endswith(f"{long.MUTATIONS_HEAD}\n\nkept\n") and "old" not in text
