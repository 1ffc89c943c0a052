"""A Spark session that reads a driftlog bucket: `session`.

    no JVM yet         check Java ──▶ start it with S3A's packages or jars, and all settings
    JVM, no session    all settings; its jars are those that it was started with
    a session runs     it stays as it is: settings that Spark can change are changed, others must
                       be what they are already

Shell.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkContext
from pyspark import __file__ as _pyspark_file
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from driftlog_spark_reader.common.errors import SessionError
from driftlog_spark_reader.common.s3_access import S3Access, s3_access
from driftlog_spark_reader.sessions import s3a
from driftlog_spark_reader.sessions.java import check_java
from driftlog_spark_reader.source.session_location import SETTING

_HADOOP: Final = "spark.hadoop."
_SECRETS: Final = ("secret", "token", "password", "access.key")


def session(
    location: str,
    *,
    master: str | None = None,
    app_name: str | None = None,
    jars: Iterable[str | Path] = (),
    s3: S3Access | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A classic session whose Spark reads the log at *location*.

    Args:
        location: a directory, ``s3://bucket/prefix`` or ``s3a://…``; `spark.driftlog.location` of
            the session.  S3A is configured for buckets only.
        master: None: what spark-submit says, or else ``local[*]``.
        app_name: None: ``driftlog``.
        jars: S3A's jars, or folders of jars, instead of a download from Maven.
        s3: endpoint, region, keys or profile; what is None comes from the ``AWS_*`` variables.
        config: more settings of Spark; they precede those of this function.

    Raises:
        ValueError: an argument is invalid.
        SessionError: there is no Java that Spark runs on, the JVM does not start or has no S3A, or
            a session runs with other settings.
    """
    config = dict(config or {})
    if not location.strip():
        raise ValueError("the location is empty")
    if "SPARK_REMOTE" in os.environ or "spark.remote" in config:
        raise SessionError(
            "SPARK_REMOTE or spark.remote asks for Spark Connect, and session() makes classic "
            f"sessions; connect with SparkSession.builder, and set {SETTING} there"
        )
    in_bucket = location.startswith(("s3://", "s3a://"))
    asked = {SETTING: location}
    if in_bucket:
        asked |= s3a.settings(s3_access(s3 or S3Access(), os.environ))
    if master is not None:
        asked["spark.master"] = master
    if app_name is not None:
        asked["spark.app.name"] = app_name
    asked |= config

    if SparkContext._active_spark_context is not None:
        spark = SparkSession.builder.getOrCreate()
        if in_bucket:
            _check_s3a(spark)
        _change(spark, asked)
        return spark
    spark = _create(asked, _jars(jars), in_bucket=in_bucket)
    if in_bucket:
        try:
            _check_s3a(spark)
        except SessionError:
            spark.stop()
            raise
    return spark


def _create(asked: Mapping[str, str], jars: list[str], *, in_bucket: bool) -> SparkSession:
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    has_jvm = SparkContext._gateway is not None
    defaults = {"spark.app.name": "driftlog"}
    if not submitted:
        defaults["spark.master"] = "local[*]"
    if in_bucket:
        defaults |= s3a.DEFAULTS
    found = defaults | dict(asked)
    if jars:
        found["spark.jars"] = ",".join([*jars, *filter(None, [asked.get("spark.jars")])])
    elif (
        in_bucket
        and not has_jvm
        and not submitted
        and "hadoop-aws" not in found.get("spark.jars", "")
    ):
        found["spark.jars.packages"] = s3a.with_packages(asked, _packages())
    if not has_jvm and not submitted:
        check_java(os.environ)
        if found["spark.master"].startswith("local"):
            # Without these, workers are of another Python, and the driver binds a public address.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    elif has_jvm:
        # Hadoop keeps file systems for the life of the JVM, with the settings they were made with.
        jvm: Any = SparkContext._jvm
        jvm.org.apache.hadoop.fs.FileSystem.closeAll()
    try:
        return SparkSession.builder.config(map=dict(found)).getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise SessionError(
            "the JVM of Spark did not start; its messages on stderr say why.  Where they are about "
            "packages that cannot be downloaded, give S3A's jars with jars=, or the settings of a "
            "mirror with config={'spark.jars.ivySettings': …}"
        ) from error


def _jars(given: Iterable[str | Path]) -> list[str]:
    """The paths of jars, those of folders included.

    Raises:
        ValueError: there is no such jar.
    """
    found: list[str] = []
    for path in map(Path, [given] if isinstance(given, str | Path) else given):
        jars = sorted(path.glob("*.jar")) if path.is_dir() else [path]
        if not jars or not all(jar.is_file() for jar in jars):
            raise ValueError(f"jars: {path} is no jar, and no folder of jars")
        found += [str(jar.absolute()) for jar in jars]
    return found


def _packages() -> str:
    home = os.environ.get("SPARK_HOME") or Path(_pyspark_file).parent
    names = [jar.stem for jar in Path(home, "jars").glob("hadoop-client-api-*.jar")]
    version = names[0].removeprefix("hadoop-client-api-") if names else "unknown"
    try:
        return s3a.packages(version)
    except LookupError:
        raise SessionError(
            f"the Spark in {home} has Hadoop {version}, and the AWS SDK for it is not known here "
            f"(known: {', '.join(s3a.BUNDLES)}); give org.apache.hadoop:hadoop-aws:{version} and "
            "the software.amazon.awssdk:bundle that it was built with in config's "
            "spark.jars.packages, or their jars with jars="
        ) from None


def _change(spark: SparkSession, asked: Mapping[str, str]) -> None:
    """Set what can be set in a session that runs.

    Raises:
        SessionError: another setting is not what *asked* says; nothing is changed.
    """
    session_state: Any = spark._jsparkSession.sessionState()
    hadoop: Any = session_state.newHadoopConf()
    changed: dict[str, str] = {}
    refused: list[str] = []
    for key, wanted in asked.items():
        if key.startswith("spark.jars"):
            continue  # What counts are the classes: `_check_s3a`.
        now = hadoop.get(key.removeprefix(_HADOOP)) if key.startswith(_HADOOP) else None
        if not key.startswith(_HADOOP):
            now = spark.conf.get(key, None)
        if now == wanted:
            continue
        if key == SETTING or spark.conf.isModifiable(key):
            changed[key] = wanted
        else:
            refused.append(f"{key} ({_shown(key, now)}, not {_shown(key, wanted)})")
    if refused:
        raise SessionError(
            "a Spark session is running, and these settings of it cannot be changed: "
            f"{'; '.join(refused)}.  Stop it first with spark.stop(), or leave them out"
        )
    for key, wanted in changed.items():
        spark.conf.set(key, wanted)


def _shown(key: str, value: str | None) -> str:
    if value is None:
        return "not set"
    return "…" if any(word in key for word in _SECRETS) else repr(value)


def _check_s3a(spark: SparkSession) -> None:
    """
    Raises:
        SessionError: the JVM lacks classes of S3A.
    """
    hadoop: Any = spark._jsc.hadoopConfiguration()
    missing = [
        package
        for name, package in s3a.CLASSES.items()
        if hadoop.getClassByNameOrNull(name) is None
    ]
    if missing:
        raise SessionError(
            f"the JVM of this process has no {', '.join(missing)}, and takes jars only when it "
            "starts: call session() first in a new Python process, give all of S3A's jars with "
            f"jars=, or give spark-submit --packages {s3a.packages(next(iter(s3a.BUNDLES)))}"
        )
