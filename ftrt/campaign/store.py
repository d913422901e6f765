"""The folder of a campaign: its setting, its trials as they end, and the summary."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ftrt.campaign.cells import Cell
from ftrt.errors import UsageError

_SETTING, _TRIALS, _SUMMARY = "setting.json", "trials.jsonl", "campaign.json"


class Store:
    """A campaign's folder, new or to be gone on with.

    Parameters
    ----------
    directory : path
    setting : dict
        What makes a campaign this one: cells, seed, messages. The number of trials may grow, and
        whoever goes on may name some of its cells only.

    Attributes
    ----------
    cells : list of str
        Names of all its cells.

    Raises
    ------
    UsageError
        The folder holds another campaign, or something else.
    """

    def __init__(self, directory: Path, setting: dict[str, Any]) -> None:
        self.directory, setting = directory, dict(setting)
        self.cells: list[str] = setting["cells"]
        path = directory / _SETTING
        if path.exists():
            self._compare(path, setting)
        elif directory.exists() and any(directory.iterdir()):
            raise UsageError(
                f"--out {directory} holds something that is no campaign: name a new folder"
            )
        else:
            directory.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(setting, indent=2) + "\n")
            os.replace(temporary, path)
        self._file = os.open(directory / _TRIALS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"--out {directory}: another process runs this campaign now") from None
        self.lines = self._read()

    def _compare(self, path: Path, setting: dict[str, Any]) -> None:
        found = json.loads(path.read_text())
        if set(setting["cells"]) <= set(found.get("cells", ())):
            self.cells = setting["cells"] = found["cells"]
        other = [name for name in setting if found.get(name) != setting[name]]
        if other:
            told = "; ".join(
                f"{n}: {_short(found.get(n))}, not {_short(setting[n])}" for n in other
            )
            raise UsageError(
                f"--out {self.directory} holds another campaign ({told}): name a new folder, or go "
                "on with that one by its own options"
            )

    def _read(self) -> list[dict[str, Any]]:
        path = self.directory / _TRIALS
        if not path.exists():
            return []
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]
        if len(whole) < len(text):  # whoever wrote the last line was killed in it
            os.truncate(path, len(whole.encode()))
        return [json.loads(line) for line in whole.splitlines()]

    def add(self, cell: int, named: dict[str, Any], lines: Sequence[dict[str, Any]]) -> None:
        """Append the trials of one batch."""
        made = [{"cell": cell, **named, **line} for line in lines]
        os.write(self._file, "".join(json.dumps(line) + "\n" for line in made).encode())
        os.fsync(self._file)
        self.lines += made

    def of(self, cell: int) -> list[dict[str, Any]]:
        """Trials of a cell so far."""
        return [line for line in self.lines if line["cell"] == cell]

    def done(self, cell: int, control: bool) -> set[int]:
        """Numbers of a cell's trials that are there."""
        return {line["trial"] for line in self.of(cell) if line["control"] == control}

    def summarise(self, summary: dict[str, Any]) -> Path:
        """Write ``campaign.json``."""
        path = self.directory / _SUMMARY
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(summary, indent=2) + "\n")
        os.replace(temporary, path)
        return path

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._file)


def setting_of(cells: Sequence[Cell], seed: int, **others: Any) -> dict[str, Any]:
    """What a campaign is known by."""
    return {"format": 1, "seed": seed, "cells": [cell.name for cell in cells], **others}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:57]}..."
