"""``ftrt report``: figures and one page of a campaign, or of the job in a ledger directory."""

from __future__ import annotations

from pathlib import Path

from ftrt.errors import UsageError

PAGE = "report.html"


def report(directory: Path | str, out: Path | str | None = None) -> list[Path]:
    """Draw what a directory holds.

    Parameters
    ----------
    directory : path
        Of a campaign, or the ledger of a job.
    out : path, optional
        Where the files go; ``report`` in ``directory`` by default.

    Returns
    -------
    list of Path
        The page first, then its figures, which are in the page as well.

    Raises
    ------
    UsageError
        The directory is neither, or matplotlib is not installed (then an ImportError, too).
    LedgerDamaged
        A record of the job is damaged.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise UsageError(f"{directory}: there is no such folder")
    from ftrt.report import pages  # these need matplotlib

    if (directory / "campaign.json").exists():
        from ftrt.report.campaign import read_campaign
        from ftrt.report.campaign_figures import pictures as of_group

        campaign = read_campaign(directory)
        page = pages.campaign_page(campaign)
        pictures = [picture for group in campaign.groups for picture in of_group(group)]
        tables = lambda: pages.campaign_tables(page, campaign)  # noqa: E731
    elif (directory / "job.json").exists():
        from ftrt.report.job import read_job
        from ftrt.report.job_figures import pictures as of_job

        job = read_job(directory)
        page, pictures = pages.job_page(job), of_job(job)
        tables = lambda: pages.job_tables(page, job)  # noqa: E731
    else:
        raise UsageError(_neither(directory))
    out = Path(out) if out is not None else directory / "report"
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = []
        for picture in pictures:
            path = out / f"{picture.name}.png"
            path.write_bytes(page.picture(picture))
            written.append(path)
        tables()
        (out / PAGE).write_text(page.html(), encoding="utf-8")
    except OSError as error:
        where = error.filename or out
        raise UsageError(
            f"{where}: cannot be written: {error.strerror}; choose another folder with --out"
        ) from error
    return [out / PAGE, *written]


def _neither(directory: Path) -> str:
    if (directory / "trials.jsonl").exists():
        return (
            f"{directory}: the campaign there was cut off before its summary; type its `ftrt "
            "campaign` command again, which goes on where it was"
        )
    return (
        f"{directory}: is neither a campaign nor a ledger; name what --out of `ftrt campaign` or "
        "--ledger of `ftrt run` named"
    )
