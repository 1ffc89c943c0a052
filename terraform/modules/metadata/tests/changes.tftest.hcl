# What changes no member by itself, with a mock of the provider: three members that change at once have no
# quorum. Nothing is asked of AWS.

mock_provider "aws" {
  mock_data "aws_iam_policy_document" {
    defaults = { json = "{\"Version\":\"2012-10-17\",\"Statement\":[]}" }
  }

  mock_data "aws_ec2_instance_type" {
    defaults = { supported_architectures = ["arm64"], default_vcpus = 1, instance_storage_supported = false }
  }

  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-12345678" }
  }
}

variables {
  name                      = "a"
  vpc_id                    = "vpc-1"
  subnet_ids                = { eu-central-1a = "subnet-a", eu-central-1b = "subnet-b", eu-central-1c = "subnet-c" }
  client_security_group_ids = { agents = "sg-1" }
  bucket                    = "a-log"
  etcd_release_file         = "tests/etcd-v3.6.16-linux-arm64.tar.gz"
  instance_type             = "m7g.large"
}

run "three_members" {
  assert {
    condition     = alltrue([for machine in aws_instance.this : machine.instance_type == "m7g.large"])
    error_message = "A new member has the type that was given."
  }
}

run "another_type_or_image_stops_no_member" {
  command = plan

  variables {
    instance_type = "m7g.xlarge"
  }

  override_data {
    target = data.aws_ssm_parameter.ami
    values = { insecure_value = "ami-87654321" }
  }

  assert {
    condition     = alltrue([for machine in aws_instance.this : machine.instance_type == "m7g.large" && machine.ami == "ami-12345678"])
    error_message = "A member has another type or image when its machine is replaced, one at a time."
  }
}
