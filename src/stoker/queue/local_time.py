"""The time zone of this machine, with its summer time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo


class LocalZone(tzinfo):
    """The zone that the C library uses: TZ, or that of the system.

    The one that datetime.astimezone() gives is the offset of one moment, and an hour off for half of the year.
    """

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """How much the clocks here are ahead of UTC at that time of the clocks."""
        if moment is None:
            return None
        naive = moment.replace(tzinfo=None)
        return naive - datetime.fromtimestamp(naive.timestamp(), UTC).replace(tzinfo=None)

    def fromutc(self, moment: datetime) -> datetime:
        """What the clocks here show at a moment that is given in UTC."""
        seconds = moment.replace(tzinfo=UTC).timestamp()
        return datetime.fromtimestamp(seconds).replace(tzinfo=self)

    def dst(self, moment: datetime | None) -> timedelta | None:
        """Nobody needs to know which part of the offset is summer time."""
        del moment
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        """The abbreviation at that time of the clocks: CET, EDT."""
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()
