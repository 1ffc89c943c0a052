"""The errors of reading and writing topics; each message is for the user of the DataFrame.

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


class DataLossError(ReadTopicError):
    """Records of a query are deleted, or cannot be decoded, and failOnDataLoss=false is not set."""


class ImportTopicError(Exception):
    """A bulk import failed: there is no topic, and what was written is deleted by the agents."""


class TopicExistsError(ImportTopicError):
    """There is a topic of the import's name; the import has ended, or did not begin."""


class RawSegmentSkippedWarning(UserWarning):
    """A range of offsets whose batches could not be decoded is not in the DataFrame."""


class TailUnavailableError(ReadTopicError):
    """The tail cannot be read: agents or etcd do not answer, or refuse."""


class SealedMeanwhileError(ReadTopicError):
    """A range of the tail was sealed, or deleted, after its manifest was read: look again."""


class WriteTopicError(Exception):
    """Rows were not written: the message names the topic, the cause, and what to do."""


class SessionError(Exception):
    """There is no Spark session as asked for; the message says what to install or to change."""


class JobError(Exception):
    """A job cannot do what it is asked for; the message says why, and what to do."""
