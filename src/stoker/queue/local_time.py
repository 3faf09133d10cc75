"""The time zone of this machine, with its summer time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo


class LocalZone(tzinfo):
    """The zone of the C library: TZ, or that of the system.

    datetime.astimezone() gives the offset of one moment, which is an hour off for half of the year.
    """

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """Offset from UTC at a local time."""
        if moment is None:
            return None
        naive = moment.replace(tzinfo=None)
        return naive - datetime.fromtimestamp(naive.timestamp(), UTC).replace(tzinfo=None)

    def fromutc(self, moment: datetime) -> datetime:
        """The local time of a moment in UTC."""
        seconds = moment.replace(tzinfo=UTC).timestamp()
        return datetime.fromtimestamp(seconds).replace(tzinfo=self)

    def dst(self, moment: datetime | None) -> timedelta | None:
        """Unknown: only the whole offset is used."""
        del moment
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        """The abbreviation at a local time: CET, EDT."""
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()
