"""How remote state fails, told by what the caller may do next.

Adapters translate every foreign exception into one of these; what they do not
know becomes `OutcomeUnknownError`.

Pure.
"""


class StoreError(Exception):
    """Base of every error that a port to remote state may raise."""


class UnavailableError(StoreError):
    """Refused (throttled, overloaded, no quorum, disk full).  Nothing happened; retry."""


class DeclinedError(UnavailableError):
    """Understood and declined (credentials, a name): no retry helps until that is mended."""


class StoreNotOursError(DeclinedError):
    """The store is not the one that this process has seen before (`witness`): it is not asked."""


class OutcomeUnknownError(StoreError):
    """The answer was lost (timeout, reset).  It may have happened; retry what is idempotent."""


class FencedError(StoreError):
    """Someone newer is in charge.  Nothing happened, and nothing of ours will; step down."""


class CorruptError(Exception):
    """These bytes are not what they claim to be: hang up, or quarantine; always logged."""


class UnsupportedFormatError(CorruptError):
    """Stored by a newer driftlog than this one: upgrade this one, the bytes are fine."""
