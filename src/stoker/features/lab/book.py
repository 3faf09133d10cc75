"""`stoker book`: keep GPUs free for a time, show who has booked, and cancel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click
from msgspec.structs import replace

from stoker.app.jobs.config import load_config
from stoker.app.jobs.local_time import LocalZone, clock_text
from stoker.app.views.facts import QueueFacts
from stoker.app.views.gpus import known_devices
from stoker.app.views.summary import ledger_here
from stoker.cli.console import say
from stoker.cli.options import Screen, StokerCommand, screen_options, write_json, write_plain
from stoker.cli.screens.plain import Columns, plain_lines
from stoker.cli.screens.text import Column, Line, Span, one_line, table_lines, write_lines
from stoker.core.booking import Booking
from stoker.core.device import Device, resolve
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.planner.reasons import rough_duration
from stoker.core.units import parse_duration, parse_moment
from stoker.features.lab.bookings import (
    BookingLine,
    Bookings,
    booking_named,
    bookings_of,
    check_booked,
    check_times,
    choose_devices,
    gpus_text,
)
from stoker.ledger import Ledger


@click.command(name="book", cls=StokerCommand)
@click.argument("gpus", metavar="[N]", type=click.IntRange(min=1), required=False)
@click.option("--from", "begin", metavar="WHEN", help="When it begins: 18:00, fri 18:00, tomorrow noon, now+2h.")
@click.option("--for", "lasts", metavar="TIME", help="How long it lasts, for example 12h or 2d; at most 14 days.")
@click.option("--why", metavar="TEXT", default="", help="The reason, which all users see.")
@click.option("--gpu", "named", metavar="IDS", help="These GPUs, for example 0,2; else those that will likely be free.")
@click.option("--cancel", metavar="ID", multiple=True, help="Cancel a booking.")
@click.option("--list", "listed", is_flag=True, help="Show who has booked what; the default without N.")
@screen_options
def command(
    *,
    gpus: int | None,
    begin: str | None,
    lasts: str | None,
    why: str,
    named: str | None,
    cancel: tuple[str, ...],
    listed: bool,
    screen: Screen,
) -> int:
    """Book GPUs for a time: the engines of other users keep them free from then on.

    Jobs of others that end before still start there, by their time limit or by earlier runs; preemptible jobs leave in
    time. A job that neither ends nor is preemptible runs on: the booking of its GPU begins when it ends. A booking
    needs no running engine. It is lost if the machine reboots, unless the ledger is on a disk.

    \b
      stoker book 4 --from "fri 18:00" --for 12h --why "deadline"
      stoker book --gpu 2,3 --for 2h       from now on
      stoker book                          who has booked what
      stoker book --cancel 3fa2
    """
    wants = gpus is not None or named is not None
    if sum((wants, bool(cancel), listed)) > 1:
        raise UsageError("--list, --cancel and a new booking cannot be combined", "give one of them")
    if not wants and (begin or lasts or why):
        raise UsageError("the number of GPUs is missing", "for example: stoker book 2 --from 18:00 --for 4h")
    with known_devices(screen.paths) as facts:
        ledger = ledger_here(screen.paths)
        for word in cancel:
            ledger.agreements.end_booking(booking_named(word, ledger.live()))
            say(f"cancelled booking {word}")
        if wants:
            if lasts is None:
                raise UsageError("--for is missing", "say how long it lasts, for example --for 4h")
            chosen = _named(named, gpus, facts)
            since, until = _times(begin, lasts, facts.now)
            wanted = Booking(facts.user, os.geteuid(), (), since, until, why)
            check_booked(wanted, gpus or len(chosen), ledger.live(), load_config(os.environ, None).engine.locked)
            devices = choose_devices(gpus or len(chosen), chosen, wanted, ledger.live(), facts)
            name = _book(ledger, replace(wanted, claims=tuple(claim for device in devices for claim in device.claims)))
            _show(bookings_of(ledger.live(), facts), screen, name)
        elif not cancel:
            _show(bookings_of(ledger.live(), facts), screen)
    return 0


def _times(begin: str | None, lasts: str, now: float) -> tuple[float, float]:
    since = now if begin is None else parse_moment(begin, now, LocalZone())
    seconds = parse_duration(lasts)
    check_times(since, seconds, now)
    return since, since + seconds


def _named(words: str | None, gpus: int | None, facts: QueueFacts) -> tuple[Device, ...]:
    if words is None:
        return ()
    status = next(iter(facts.statuses.current), None)
    if status is None:
        raise Impossible("no GPU is known on this machine", "see stoker gpus")
    ids = dict.fromkeys(resolve(status.snapshot, word) for word in words.split(","))
    if gpus is not None and gpus != len(ids):
        raise UsageError(f"--gpu names {len(ids)} GPUs, not {gpus}", "leave out the number")
    return tuple(facts.devices[device_id] for device_id in ids)


def _book(ledger: Ledger, wanted: Booking) -> str:
    outcome = ledger.agreements.book(wanted)
    if isinstance(outcome, Booking):
        raise StokerError(f"{outcome.owner} has booked such a GPU at this moment", "try again")
    return outcome


PLAIN_COLUMNS: Columns = {
    "ID": "id",
    "USER": "user",
    "GPUS": lambda line: ",".join(line.gpus),
    "FROM": "begin",
    "UNTIL": "end",
    "STATE": "state",
    "IN_THE_WAY": lambda line: "; ".join(line.in_the_way),
    "WHY": "why",
}


# -- the table -------------------------------------------------------------------------------------


def _show(bookings: Bookings, screen: Screen, name: str = "") -> None:
    """All bookings, or a new one."""
    now = bookings.at.timestamp()
    shown = [line for line in bookings.bookings if not name or name.split(".")[1].startswith(line.id)]
    if screen.form == "json":
        write_json(Bookings(bookings.schema, bookings.at, shown))
    elif screen.form == "plain":
        write_plain(plain_lines(shown, PLAIN_COLUMNS))
    elif shown:
        write_lines(booking_table(shown, now, screen.size[0]), screen.color)
    else:
        write_lines([(Span("no bookings; book with: stoker book 2 --from 18:00 --for 4h", "faint"),)], screen.color)


def _cells(line: BookingLine, now: float) -> tuple[str, ...]:
    begin, end = line.begin.timestamp(), line.end.timestamp()
    lasts = rough_duration(end - begin)
    begins = "now" if line.state == "now" else clock_text(begin, now)
    return line.id, line.user, gpus_text(line.gpus), begins, clock_text(end, now), lasts, one_line(line.why)


def booking_table(lines: Sequence[BookingLine], now: float, width: int) -> list[Line]:
    rows = [_cells(line, now) for line in lines]
    titles = ("ID", "USER", "GPUS", "FROM", "UNTIL", "FOR")
    columns = [
        Column(title, [Span(row[place], "id" if place == 0 else "") for row in rows], 9 - place, always=True)
        for place, title in enumerate(titles)
    ]
    table = table_lines(columns, "WHY", [(Span(row[-1]),) for row in rows], width, 10)
    return [*table, *_notes(lines)]


def _notes(lines: Sequence[BookingLine]) -> Iterator[Line]:
    """The jobs because of which a booking begins later on some of its GPUs."""
    for line in lines:
        for text in line.in_the_way:
            then = "the booking of this GPU begins when it ends"
            yield (Span(f" {line.id}  {text}; {then}" if line.state == "now" else f" {line.id}  {text}", "odd"),)
