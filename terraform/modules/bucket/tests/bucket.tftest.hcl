# The rules of the bucket. The provider is real, because it renders the policies; nothing is asked of AWS.

provider "aws" {
  region                      = "eu-central-1"
  access_key                  = "none"
  secret_key                  = "none"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true
}

override_data {
  target = data.aws_caller_identity.current
  values = { account_id = "123456789012" }
}

variables {
  name = "a-log"
}

run "no_rule_takes_a_live_object" {
  command = plan

  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this.rule) == 1
    error_message = "There is one lifecycle rule."
  }

  assert {
    condition = alltrue([for rule in aws_s3_bucket_lifecycle_configuration.this.rule :
      length(rule.expiration) == 0 && length(rule.noncurrent_version_expiration) == 0 && length(rule.transition) == 0
    ])
    error_message = "A lifecycle rule must expire and move nothing: only the collector knows what is garbage."
  }

  assert {
    condition     = aws_s3_bucket.this.force_destroy == false
    error_message = "terraform destroy must not delete a log."
  }
}

run "closed_to_the_public_and_to_plain_http" {
  command = plan

  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.this.block_public_acls,
      aws_s3_bucket_public_access_block.this.block_public_policy,
      aws_s3_bucket_public_access_block.this.ignore_public_acls,
      aws_s3_bucket_public_access_block.this.restrict_public_buckets,
    ])
    error_message = "All four locks of the public access block are on."
  }

  assert {
    condition = join(" ", [for s in jsondecode(data.aws_iam_policy_document.tls_only.json).Statement : jsonencode([s.Effect, s.Principal, s.Action, s.Condition])]) == join(" ", [
      jsonencode(["Deny", "*", "s3:*", { Bool = { "aws:SecureTransport" = "false" } }]),
      jsonencode(["Deny", "*", "s3:*", { NumericLessThan = { "s3:TlsVersion" = "1.2" } }]),
    ])
    error_message = "The bucket's policy denies everything without TLS 1.2."
  }

  assert {
    condition     = one(aws_s3_bucket_ownership_controls.this.rule).object_ownership == "BucketOwnerEnforced"
    error_message = "No ACL opens an object."
  }
}

run "an_agent_has_exactly_these_actions" {
  command = plan

  assert {
    condition = { for s in jsondecode(output.policies["agent"]).Statement : s.Sid => join(" ", sort(flatten([s.Action]))) } == {
      ReadAndWrite = "s3:GetObject s3:PutObject"
      Collect      = "s3:DeleteObject"
      List         = "s3:ListBucket"
    }
    error_message = "An agent gets, puts, deletes and lists, and nothing else."
  }

  assert {
    condition = alltrue([for s in jsondecode(output.policies["agent"]).Statement : s.Sid != "Collect" || alltrue([
      for arn in flatten([s.Resource]) : !can(regex("/(cluster|audit|producer-ids)", arn))
    ])])
    error_message = "No agent may delete the cluster's identity, audit records or blocks of producer ids."
  }

  assert {
    condition = alltrue([for s in jsondecode(output.policies["agent"]).Statement : s.Sid == "List" || alltrue([
      for arn in flatten([s.Resource]) : startswith(arn, "arn:aws:s3:::a-log/log/")
    ])])
    error_message = "An agent's objects are under the cluster's prefix: not artifacts, not etcd's backups."
  }
}

run "a_reader_writes_nothing_and_a_writer_only_topics" {
  command = plan

  assert {
    condition     = join(" ", sort(distinct(flatten([for s in jsondecode(output.policies["reader"]).Statement : s.Action])))) == "s3:GetObject s3:ListBucket"
    error_message = "A reader only reads."
  }

  assert {
    condition     = one([for s in jsondecode(output.policies["writer"]).Statement : s.Resource if s.Action == "s3:PutObject"]) == "arn:aws:s3:::a-log/log/topics/*"
    error_message = "A writer writes below topics/ and nowhere else."
  }

  assert {
    condition     = contains(flatten([for s in jsondecode(output.policies["writer"]).Statement : s.Resource if s.Action == "s3:GetObject"]), "arn:aws:s3:::a-log/log/groups/*")
    error_message = "A writer reads the configs of all brokers, which are in the snapshot of groups: else each compaction and merge fails."
  }

  assert {
    condition     = length([for s in jsondecode(output.policies["writer"]).Statement : s if contains(flatten([s.Action]), "s3:DeleteObject")]) == 0
    error_message = "A writer deletes nothing."
  }
}

run "roles_trust_the_account_unless_told_whom" {
  command = plan

  variables {
    writer_principals = ["arn:aws:iam::210987654321:role/spark"]
  }

  assert {
    condition     = jsondecode(data.aws_iam_policy_document.trust["reader"].json).Statement[0].Principal.AWS == "arn:aws:iam::123456789012:root"
    error_message = "Without principals, the role trusts its own account."
  }

  assert {
    condition     = jsondecode(data.aws_iam_policy_document.trust["writer"].json).Statement[0].Principal.AWS == "arn:aws:iam::210987654321:role/spark"
    error_message = "With principals, it trusts them and no one else."
  }
}

# One run for all of them: each must be refused, or the run fails.
run "refuses_each_of_these" {
  command         = plan
  expect_failures = [var.name, var.prefix, var.reader_principals, var.abort_uploads_after_days]

  variables {
    # a name with a dot
    name = "logs.example.com"
    # a prefix of machines
    prefix = "backups/log"
    # the wildcard as a reader
    reader_principals = ["*"]
    # to abort uploads at once
    abort_uploads_after_days = 0
  }
}

run "refuses_a_name_that_leaves_no_room_for_names_of_roles" {
  command         = plan
  expect_failures = [var.name]

  variables {
    # 58 letters, and IAM's names end at 64: with -reader it has 65
    name = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdef"
  }
}
