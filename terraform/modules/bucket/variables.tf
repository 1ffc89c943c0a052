variable "name" {
  description = "Name of the bucket, unique in all of AWS."
  type        = string

  validation {
    condition     = can(regex("^[a-z0-9][a-z0-9-]{1,55}[a-z0-9]$", var.name))
    error_message = "The name has 3 to 57 lower-case letters, digits and hyphens, and no dot: names of roles begin with it and end at 64, and a name with dots has no certificate."
  }
}

variable "prefix" {
  description = "Prefix of the cluster's objects, without slashes at its ends. One prefix holds one cluster."
  type        = string
  default     = "log"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$", var.prefix))
    error_message = "The prefix has words of letters, digits, _ and -, between single slashes."
  }

  validation {
    condition     = !contains(["artifacts", "backups"], split("/", var.prefix)[0])
    error_message = "artifacts/ and backups/ hold what machines install and etcd's snapshots."
  }
}

variable "reader_principals" {
  description = "ARNs of roles, users or accounts that may assume the reader's role, such as the execution role of Spark's cluster. Empty: identities of this account that may call sts:AssumeRole on it."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.reader_principals : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:", arn))])
    error_message = "Each principal is an ARN of IAM or STS; the wildcard is not allowed."
  }
}

variable "writer_principals" {
  description = "The same, for the writer's role: Spark's imports, compaction and merges."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.writer_principals : can(regex("^arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:", arn))])
    error_message = "Each principal is an ARN of IAM or STS; the wildcard is not allowed."
  }
}

variable "abort_uploads_after_days" {
  description = "Days after which S3 drops the parts of a multipart upload that was not completed. Agents make none; Spark's exports do."
  type        = number
  default     = 3

  validation {
    condition     = var.abort_uploads_after_days >= 1 && floor(var.abort_uploads_after_days) == var.abort_uploads_after_days
    error_message = "A whole number of days, at least 1."
  }
}

variable "tags" {
  description = "Tags of everything that the module makes."
  type        = map(string)
  default     = {}
}
