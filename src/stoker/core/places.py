"""Fixed places of a machine."""

SYSTEM_FILE = "/etc/stoker/config.toml"
"""The configuration of all users."""
LEDGER_PLACES = ("/run/lock/stoker", "/tmp/.stoker")
"""The directories of the ledger, unless STOKER_LEDGER names one; the first that exists counts."""
