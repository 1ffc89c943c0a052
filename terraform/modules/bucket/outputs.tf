output "name" {
  description = "Name of the bucket."
  value       = aws_s3_bucket.this.id

  # Machines that write here start when the bucket is closed to the public and encrypted.
  depends_on = [
    aws_s3_bucket_policy.this,
    aws_s3_bucket_ownership_controls.this,
    aws_s3_bucket_server_side_encryption_configuration.this,
  ]
}

output "arn" {
  description = "ARN of the bucket."
  value       = aws_s3_bucket.this.arn
}

output "prefix" {
  description = "Prefix of the cluster's objects."
  value       = var.prefix
}

output "location" {
  description = "The cluster's location, as `--store` and Spark take it."
  value       = "s3://${aws_s3_bucket.this.id}/${var.prefix}"
}

output "agent_policy_arn" {
  description = "ARN of the policy with what an agent does in the bucket, for the role of a machine or of a pod."
  value       = aws_iam_policy.agent.arn
}

output "policies" {
  description = "The policies as JSON: of an `agent`, a `reader` and a `writer`."
  value = {
    agent  = data.aws_iam_policy_document.agent.json
    reader = data.aws_iam_policy_document.reader.json
    writer = data.aws_iam_policy_document.writer.json
  }
}

output "reader_role_arn" {
  description = "ARN of the role with which Spark reads topics."
  value       = aws_iam_role.user["reader"].arn
}

output "writer_role_arn" {
  description = "ARN of the role with which Spark imports, compacts and merges topics."
  value       = aws_iam_role.user["writer"].arn
}
