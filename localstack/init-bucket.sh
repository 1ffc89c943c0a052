#!/bin/sh
# LocalStack runs this when S3 answers: the agents' bucket.
exec awslocal s3api create-bucket --bucket driftlog
