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
{{- $forbidden := printf "max by (pod, resource) (kubevirt_scheduler_cache_forbidden{%s}) > 0" $of }}
{{- $unlisted := printf "min by (pod, resource) (kubevirt_scheduler_cache_synced{%s}) == 0" $of }}
- alert: KubevirtSchedulerCacheFails
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" (list "forbidden" $forbidden "never-listed" $unlisted) | nindent 4 }}
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: The webhook can't list or watch the cluster's {{ `{{ $labels.resource }}` }} ({{ `{{ $labels.cause }}` }}).
    description: "`forbidden`: a right is missing. `never-listed`: the replica isn't ready. /readyz?verbose of {{ `{{ $labels.pod }}` }} gives the cause; it names a missing right and the service account."
- alert: KubevirtSchedulerCacheFails
  # A quiet watch gets a bookmark about once a minute, and times out after 150 s.
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" (list "stale" (printf "max by (pod, resource) (kubevirt_scheduler_cache_age_seconds{%s}) > 300" $of)) | nindent 4 }}
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: The webhook decides with {{ `{{ $labels.resource }}` }} that are minutes old ({{ `{{ $labels.cause }}` }}).
    description: "{{ `{{ $labels.pod }}` }} gets no events from the API server. Check its log, and the network between them."
{{- /* A decision takes a millisecond. If one in a hundred takes a tenth of a second, something delays it. */}}
{{- $slow := printf "histogram_quantile(0.99, sum by (le) (rate(kubevirt_scheduler_decision_duration_seconds_bucket{%s}[10m]))) > %v" $of .Values.prometheusRule.thresholds.slowSeconds }}
{{- /* A turn takes some milliseconds. Meanwhile no other review gets a response; after 10 s the probes fail. */}}
{{- $blocked := printf "max(kubevirt_scheduler_loop_longest_turn_seconds{%s}) > 0.5" $of }}
- alert: KubevirtSchedulerSlow
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" (list "decisions" $slow "event-loop" $blocked) | nindent 4 }}
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: The webhook delays the start of opted-in VMs ({{ `{{ $labels.cause }}, {{ $value | humanizeDuration }}` }}).
    description: "`decisions`: one in a hundred decisions takes that long. `event-loop`: something blocks the event loop that long at a time. Look for a CPU limit, an overloaded node, and large reviews in the log (`ms`)."
- alert: KubevirtSchedulerEventsDropped
  expr: sum by (cause) (increase(kubevirt_scheduler_events_dropped_total{ {{- $of -}} }[30m])) > 0
  for: 30m
  labels:
    severity: info
  annotations:
    summary: The webhook can't write Events about VMs ({{ `{{ $labels.cause }}` }}).
    description: Decisions are not affected. `full` means that the API server is slow; for `failed`, see the log.
{{- end }}
