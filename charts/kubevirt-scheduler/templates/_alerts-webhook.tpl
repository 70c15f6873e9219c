{{/* Alerts about the replicas: absent, without data, or slow. */}}

{{- define "kubevirt-scheduler.alerts.webhook" -}}
{{- $of := include "kubevirt-scheduler.alerts.of" . }}
- alert: KubevirtSchedulerAbsent
  expr: absent(kubevirt_scheduler_build_info{ {{- $of -}} })
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: Prometheus finds no replica of the webhook.
    description: If no replica runs, opted-in VMs start without co-scheduling{{ if eq .Values.webhook.failurePolicy "Fail" }}, or not at all{{ end }}. Check the pods of Deployment {{ .Release.Namespace }}/{{ include "kubevirt-scheduler.fullname" . }}.
- alert: KubevirtSchedulerRightMissing
  expr: max by (pod, resource) (kubevirt_scheduler_cache_forbidden{ {{- $of -}} }) > 0
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: The webhook lacks the right to list or watch {{ `{{ $labels.resource }}` }}.
    description: "Check /readyz of {{ `{{ $labels.pod }}` }}: it names the missing right and the service account."
- alert: KubevirtSchedulerNotSynced
  expr: min by (pod, resource) (kubevirt_scheduler_cache_synced{ {{- $of -}} }) == 0
  for: 10m
  labels:
    severity: critical
  annotations:
    summary: The webhook has never listed the cluster's {{ `{{ $labels.resource }}` }}.
    description: "{{ `{{ $labels.pod }}` }} is not ready. Its /readyz?verbose gives the cause."
- alert: KubevirtSchedulerStale
  # A quiet watch gets a bookmark about once a minute, and times out after 150 s.
  expr: max by (pod, resource) (kubevirt_scheduler_cache_age_seconds{ {{- $of -}} }) > 300
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: The webhook decides with {{ `{{ $labels.resource }}` }} that are minutes old.
    description: "{{ `{{ $labels.pod }}` }} gets no events from the API server. Check its log, and the network between them."
- alert: KubevirtSchedulerSlow
  # A decision takes a millisecond. If one in a hundred takes a tenth of a second, something delays it.
  expr: histogram_quantile(0.99, sum by (le) (rate(kubevirt_scheduler_decision_duration_seconds_bucket{ {{- $of -}} }[10m]))) > 0.1
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: The webhook delays the start of opted-in VMs.
    description: Look for a CPU limit and an overloaded node.
- alert: KubevirtSchedulerLoopBlocked
  # A turn takes some milliseconds. Meanwhile no other review gets a response; after 10 s the probes fail.
  expr: max(kubevirt_scheduler_loop_longest_turn_seconds{ {{- $of -}} }) > 0.5
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: Something blocks the webhook's event loop for half a second at a time.
    description: Look for a CPU limit, an overloaded node, and large reviews in the log (`ms`).
- alert: KubevirtSchedulerEventsDropped
  expr: sum by (cause) (increase(kubevirt_scheduler_events_dropped_total{ {{- $of -}} }[30m])) > 0
  for: 30m
  labels:
    severity: info
  annotations:
    summary: The webhook can't write Events about VMs ({{ `{{ $labels.cause }}` }}).
    description: Decisions are not affected. `full` means that the API server is slow; for `failed`, see the log.
{{- end }}
