"""The errors of reading and importing a topic; each message is for the user of the DataFrame.

Pure.
"""


class ReadTopicError(Exception):
    """Base of the errors of `read_topic`; a wrong argument raises ValueError."""


class StorageError(ReadTopicError):
    """The location cannot be read: it, its credentials or its connector is missing, or it fails."""


class UnknownTopicError(ReadTopicError):
    """The location has no topic of that name (or id)."""


class DeletedTopicError(ReadTopicError):
    """The topic is deleted; its objects are being deleted."""


class AmbiguousTopicError(ReadTopicError):
    """Several live topics have that name: pass the id of one."""


class DamagedTopicError(ReadTopicError):
    """An object that the topic's files name is damaged or missing."""


class OffsetOutOfRangeError(ReadTopicError):
    """A requested offset is not in the sealed log."""


class ImportTopicError(Exception):
    """A bulk import failed: there is no topic, and what was written is deleted by the agents."""


class RawSegmentSkippedWarning(UserWarning):
    """A range of offsets whose batches could not be decoded is not in the DataFrame."""
