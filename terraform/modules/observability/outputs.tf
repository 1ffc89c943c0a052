output "alarm_names" {
  description = "Names of all alarms."
  value = sort(concat(
    [for alarm in aws_cloudwatch_metric_alarm.agents : alarm.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.etcd_backups : alarm.alarm_name],
    [for alarm in aws_cloudwatch_metric_alarm.etcd_member : alarm.alarm_name],
    [
      aws_cloudwatch_metric_alarm.live_agents.alarm_name,
      aws_cloudwatch_metric_alarm.bootstrap.alarm_name,
    ],
  ))
}

output "dashboard_name" {
  description = "Name of the dashboard."
  value       = aws_cloudwatch_dashboard.this.dashboard_name
}
