"""`session` makes sessions that read a bucket, or says what has to be installed or changed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from driftlog_spark_reader import S3Access, SessionError, session
from tests.spark.conftest import JARS, s3a_jars
from tests.support.quick_jvm import SPARK
from tests.support.s3_servers import S3Server
from tests.support.sealed_topics import Message, SealedTopic

# One Spark for all workers of pytest-xdist; on a busy machine it takes a minute to start.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

T0 = 1_700_000_000_000
BEGIN = """
import json, sys
from driftlog_spark_reader import S3Access, SessionError, read_topic, session

location, jars = sys.argv[1:]
quiet = {"spark.ui.enabled": "false"}
def values(spark):
    rows = read_topic(spark, location, "flights").collect()
    return sorted(bytes(row.value).decode() for row in rows)
def failure(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def run(script: str, location: str, environ: dict[str, str]) -> tuple[Any, str]:
    """What *script* gives to `print(json.dumps(…))`, in a process with its own JVM; its stderr."""
    mine = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "PYSPARK_", "SPARK_")) or name in SPARK
    }
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script, location, str(JARS)],
        capture_output=True,
        text=True,
        env={**mine, **environ},
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture
def bucket(moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A bucket with a topic of two records under a prefix."""
    if not s3a_jars():
        pytest.skip("S3A's jars are not in .cache/spark-jars: run `make spark-jars`")
    with monkeypatch.context() as patch:
        for name, value in moto_s3.environment.items():
            patch.setenv(name, value)
        topic = SealedTopic(f"s3://{moto_s3.bucket}/some/prefix", "flights").create()
        topic.seal(0, 0, [Message(T0, None, b"a"), Message(T0, None, b"b")])
    return moto_s3


def test_a_bucket_is_read_with_the_variables_of_aws_or_with_arguments(bucket: S3Server) -> None:
    """
    The format knows the location that the session was started with.  A second session of the same
    JVM uses its own settings, not those that Hadoop has kept.
    """
    script = """
import os
spark = session(location, jars=jars, master="local[1]", config=quiet)
found = [values(spark), spark.conf.get("spark.driftlog.location") == location]
found.append(spark.read.format("driftlog").option("subscribe", "flights").load().count())
found += [os.environ["PYSPARK_PYTHON"] == sys.executable, os.environ["SPARK_LOCAL_IP"]]
spark.stop()
endpoint = os.environ.pop("AWS_ENDPOINT_URL")
quick = {"attempts.maximum": "1", "retry.limit": "1", "retry.interval": "1ms"}
nothing = {**quiet, **{f"spark.hadoop.fs.s3a.{name}": value for name, value in quick.items()}}
spark = session(location, config=nothing, s3=S3Access(endpoint_url="http://127.0.0.1:1"))
found.append("127.0.0.1:1" in failure(lambda: values(spark)))
spark.stop()
access = S3Access(endpoint_url=endpoint, access_key_id="k", secret_access_key="s")
spark = session(location, s3=access, app_name="mine", config=quiet)
found += [values(spark), spark.sparkContext.appName, spark.sparkContext.master]
print(json.dumps(found))
"""
    found, _ = run(script, f"s3://{bucket.bucket}/some/prefix", dict(bucket.environment))

    assert [
        ["a", "b"],
        True,
        2,
        True,
        "127.0.0.1",
        True,
        ["a", "b"],
        "mine",
        "local[*]",
    ] == found


def test_a_profile_gives_the_keys(bucket: S3Server, tmp_path: Path) -> None:
    """
    That of the argument from the credentials file, that of AWS_PROFILE as the SDKs read it.
    """
    environ = dict(bucket.environment)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del environ[name]
    credentials = tmp_path / "credentials"
    credentials.write_text("[work]\naws_access_key_id = k\naws_secret_access_key = s\n")
    environ |= {"AWS_SHARED_CREDENTIALS_FILE": str(credentials), "AWS_PROFILE": "work"}
    script = """
found = []
for profile in ("other", "work", None):
    spark = session(location, jars=jars, s3=S3Access(profile=profile), config=quiet)
    found.append(failure(lambda: values(spark)) or values(spark))
    spark.stop()
print(json.dumps(found))
"""
    (other, *others), _ = run(script, f"s3://{bucket.bucket}/some/prefix", environ)

    assert "other" in other
    assert [["a", "b"], ["a", "b"]] == others


def test_a_jvm_without_s3a_is_told(tmp_path: Path) -> None:
    """
    Whether its packages cannot be downloaded, or the JVM was started for something else.
    """
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers>'
        f'<filesystem name="none"><artifact pattern="{tmp_path}/none/[artifact]"/></filesystem>'
        "</resolvers></ivysettings>"
    )
    SealedTopic(str(tmp_path / "objects"), "flights").create().seal(0, 0, [Message(T0, None, b"a")])
    script = f"""
offline = {{"spark.jars.ivySettings": {str(settings)!r}, "spark.jars.ivy": location + "-ivy"}}
found = [failure(lambda: session("s3://bucket", config=offline))]
spark = session(location, config=quiet)
found.append(values(spark))
found.append(failure(lambda: session("s3://bucket")))
spark.stop()
found.append(failure(lambda: session("s3://bucket", jars=jars)))
spark = session(location, config=quiet)
found.append(values(spark))
print(json.dumps(found))
"""
    found, stderr = run(script, str(tmp_path / "objects"), {})

    assert "hadoop-aws;3.5.0: not found" in stderr
    assert "bundle;2.35.4: not found" in stderr
    assert "SessionError: the JVM of Spark did not start" in found[0]
    assert (["a"], ["a"]) == (found[1], found[4])
    assert all("SessionError: the JVM of this process has no" in text for text in found[2:4])
    assert all("new Python process" in text for text in found[2:4])


def test_settings_of_a_session_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    """
    Those that Spark can change are changed, after all others were found to be as asked for.
    """
    location = str(tmp_path)
    try:
        same = session(
            location, master="local[2]", config={"spark.sql.files.maxPartitionBytes": "1048576"}
        )
        assert spark is same
        assert location == spark.conf.get("spark.driftlog.location")
        assert "1048576" == spark.conf.get("spark.sql.files.maxPartitionBytes")
        with pytest.raises(SessionError) as caught:
            session(
                "/other",
                master="local[7]",
                config={
                    "spark.hadoop.fs.s3a.secret.key": "hidden",
                    "spark.executor.memory": "2g",
                    "spark.sql.shuffle.partitions": "9",
                },
            )
        assert location == spark.conf.get("spark.driftlog.location")
        assert "2" == spark.conf.get("spark.sql.shuffle.partitions")
    finally:
        spark.conf.unset("spark.driftlog.location")
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    text = str(caught.value)
    assert "spark.master ('local[2]', not 'local[7]')" in text
    assert "spark.executor.memory (not set, not '2g')" in text
    assert "secret.key (…, not …)" in text
    assert "hidden" not in text
    assert "shuffle" not in text
    assert "spark.stop()" in text


def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Before a JVM is started.
    """
    with pytest.raises(ValueError, match="location is empty"):
        session(" ")
    with pytest.raises(ValueError, match="secret access key is missing"):
        session("s3://bucket", s3=S3Access(access_key_id="a"))
    with pytest.raises(SessionError, match="Spark Connect"):
        session(str(tmp_path), config={"spark.remote": "sc://localhost"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(SessionError, match="Spark Connect"):
        session(str(tmp_path))
