# The cluster's bucket, and what each kind of user may do in it.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

resource "aws_s3_bucket" "this" {
  bucket = var.name
  tags   = var.tags

  # The log is here. A bucket with objects is not destroyed: empty it first.
  force_destroy = false
}

resource "aws_s3_bucket_ownership_controls" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket = aws_s3_bucket.this.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

# Disabled, not merely unset: the README says why.
resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Disabled"
  }
}

# No rule expires an object: only driftlog's collector knows which ones nothing names.
resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    id     = "abort-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.abort_uploads_after_days
    }
  }
}

data "aws_iam_policy_document" "tls_only" {
  statement {
    sid     = "DenyPlainHttp"
    effect  = "Deny"
    actions = ["s3:*"]

    resources = [local.bucket_arn, "${local.bucket_arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }

  statement {
    sid     = "DenyOldTls"
    effect  = "Deny"
    actions = ["s3:*"]

    resources = [local.bucket_arn, "${local.bucket_arn}/*"]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "NumericLessThan"
      variable = "s3:TlsVersion"
      values   = ["1.2"]
    }
  }
}

resource "aws_s3_bucket_policy" "this" {
  bucket = aws_s3_bucket.this.id
  policy = data.aws_iam_policy_document.tls_only.json

  depends_on = [aws_s3_bucket_public_access_block.this]
}

# ── Who may do what ──
#
# The kinds of objects are those of tiering/driftlog_tiering/formats/layout.py, and the actions those
# of tiering/driftlog_tiering/stores/s3_store.py: a PUT without parts, a GET of a range, HEAD (which
# is s3:GetObject), DeleteObjects (s3:DeleteObject) and ListObjectsV2 (s3:ListBucket).

locals {
  arn_prefix   = "arn:${data.aws_partition.current.partition}"
  account_root = "${local.arn_prefix}:iam::${data.aws_caller_identity.current.account_id}:root"

  # Known before the bucket is there: a plan shows the policies.
  bucket_arn = "${local.arn_prefix}:s3:::${var.name}"
  objects    = "${local.bucket_arn}/${var.prefix}"

  cluster_files = ["${local.objects}/cluster.json", "${local.objects}/cluster/*"]
  log_files     = ["${local.objects}/flush/*", "${local.objects}/topics/*"]
  facts         = ["${local.objects}/audit/*", "${local.objects}/producer-ids/*"]
  groups        = ["${local.objects}/groups/*"]
}

data "aws_iam_policy_document" "agent" {
  statement {
    sid       = "ReadAndWrite"
    actions   = ["s3:GetObject", "s3:PutObject"]
    resources = concat(local.cluster_files, local.log_files, local.facts, local.groups)
  }

  # Nothing deletes the cluster's identity, audit records or blocks of producer ids.
  statement {
    sid       = "Collect"
    actions   = ["s3:DeleteObject"]
    resources = concat(local.log_files, local.groups)
  }

  # Of the whole bucket: with a condition on s3:prefix, S3 answers 403 in place of 404 for an object
  # that is missing, and an agent would take that for a bucket that it may not use.
  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [local.bucket_arn]
  }
}

data "aws_iam_policy_document" "reader" {
  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = concat(local.cluster_files, local.log_files)
  }

  statement {
    sid       = "List"
    actions   = ["s3:ListBucket"]
    resources = [local.bucket_arn]
  }
}

data "aws_iam_policy_document" "writer" {
  source_policy_documents = [data.aws_iam_policy_document.reader.json]

  # Imports, compaction and merges: segments, manifests and producer snapshots. Agents collect what is
  # replaced.
  statement {
    sid       = "WriteSegments"
    actions   = ["s3:PutObject"]
    resources = ["${local.objects}/topics/*"]
  }

  # Compaction and merges follow the configs of all brokers, which are in the snapshot of groups.
  statement {
    sid       = "ReadGroups"
    actions   = ["s3:GetObject"]
    resources = local.groups
  }
}

resource "aws_iam_policy" "agent" {
  name        = "${var.name}-agent"
  description = "What an agent of driftlog does in the bucket ${var.name}."
  policy      = data.aws_iam_policy_document.agent.json
  tags        = var.tags
}

data "aws_iam_policy_document" "trust" {
  for_each = {
    reader = var.reader_principals
    writer = var.writer_principals
  }

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "AWS"
      identifiers = length(each.value) > 0 ? each.value : [local.account_root]
    }
  }
}

resource "aws_iam_role" "user" {
  for_each = data.aws_iam_policy_document.trust

  name               = "${var.name}-${each.key}"
  description        = "The ${each.key} of the topics in the bucket ${var.name}."
  assume_role_policy = each.value.json
  tags               = var.tags
}

resource "aws_iam_role_policy" "user" {
  for_each = {
    reader = data.aws_iam_policy_document.reader.json
    writer = data.aws_iam_policy_document.writer.json
  }

  name   = "bucket"
  role   = aws_iam_role.user[each.key].id
  policy = each.value
}
