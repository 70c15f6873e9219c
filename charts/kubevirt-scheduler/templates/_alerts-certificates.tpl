{{/* Alerts about the serving certificate, the CA of clients and the caBundle. */}}

{{- define "kubevirt-scheduler.alerts.certificates" -}}
{{- $of := include "kubevirt-scheduler.alerts.of" . }}
{{- $self := eq .Values.certificates.source "self" }}
{{- $clientCA := include "kubevirt-scheduler.clientCA" . }}
{{- /* The seconds that are left when an alert fires.
  leaf: the webhook's is valid for 30 days and renewed when a third is left. By default, the alerts fire at a quarter, and at the length of a weekend.
  client-ca: a rotation needs a new certificate on each control-plane node. After the expiry of the last one, the webhook accepts no API server. */}}
{{- $warning := dict "leaf" (mulf 86400 .Values.prometheusRule.thresholds.certificateDays | int) }}
{{- $critical := dict "leaf" 172800 }}
{{- if $clientCA }}
{{- $_ := set $warning "client-ca" 1209600 }}
{{- end }}
{{- range $severity, $limits := dict "warning" $warning "critical" $critical }}
{{- $expressions := list }}
{{- range $certificate, $seconds := $limits }}
{{- $expressions = append $expressions (printf "min by (certificate) (kubevirt_scheduler_certificate_expiry_seconds{%s,certificate=%q}) < %d" $of $certificate $seconds) }}
{{- end }}
- alert: KubevirtSchedulerCertificateExpiring
  expr: |-
    {{- join "\nor " $expressions | nindent 4 }}
  for: 1h
  labels:
    severity: {{ $severity }}
  annotations:
    summary: A certificate was not renewed and expires in {{ `{{ $value | humanizeDuration }} ({{ $labels.certificate }})` }}.
    description: >-
      `leaf` is the serving certificate: `kubevirt-scheduler certs status` gives the cause.
      {{- if $clientCA }} `client-ca` is the last CA of tls.clientCA: rotate it, which needs a new certificate on each control-plane node.{{ end }}
{{- end }}
{{- /* A replica fails 6 times in 30 s if the API server is down, and 27 times in 15 minutes if the API server doesn't respond, because a pass then
  takes 10 s. A conflict is normal: another replica wrote first. */}}
{{- $failures := printf "max by (cause) (increase(kubevirt_scheduler_certificate_failures_total{%s,cause!=\"conflict\"}[15m])) > 20" $of }}
{{- $causes := list "unusable" (printf "max by (pod) (kubevirt_scheduler_certificate_unusable{%s}) > 0" $of) "clock-differs" (printf "max by (pod) (abs(kubevirt_scheduler_clock_ahead_seconds{%s})) > 300" $of) }}
{{- if $clientCA }}
{{- $causes = concat $causes (list "client-ca-unusable" (printf "max by (pod) (kubevirt_scheduler_client_ca_unusable{%s}) > 0" $of)) }}
{{- end }}
{{- if ne .Values.certificates.source "cert-manager" }}
{{- $causes = concat $causes (list "ca-bundle-overwritten" (printf "sum(increase(kubevirt_scheduler_certificate_repairs_total{%s}[1h])) > 3" $of)) }}
{{- end }}
- alert: KubevirtSchedulerCertificateFails
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" $causes | nindent 4 }}
    {{- if ne .Values.certificates.source "cert-manager" }}
    or {{ $failures }}
    {{- end }}
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: The webhook can't maintain or use a certificate ({{ `{{ $labels.cause }}{{ with $labels.pod }}, {{ . }}{{ end }}` }}).
    description: >-
      The current certificate stays in use. `unusable`{{ if $clientCA }} and `client-ca-unusable`{{ end }}: new files have a problem that
      /readyz?verbose of the pod names. `clock-differs`: the clock of the pod's node and the API server's differ by more than five minutes.
      {{- if ne .Values.certificates.source "cert-manager" }} `ca-bundle-overwritten`: another program repeatedly overwrites the caBundle, and calls
      fail until the webhook repairs it. Any other cause: passes fail, and the runbook has a remedy for each.{{ end }}
{{- if $self }}
- alert: KubevirtSchedulerCertificateFails
  # One renewal is due in 20 days.
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" (list "reissued" (printf "sum by (step) (increase(kubevirt_scheduler_certificate_steps_total{%s,step=~\"start|renew\"}[1h])) > 5" $of)) | nindent 4 }}
  labels:
    severity: critical
  annotations:
    summary: The webhook issues its certificate repeatedly ({{ `{{ $labels.cause }}, {{ $labels.step }}` }}).
    description: Calls fail until the API server trusts the newest certificate. Look for another writer of the Secret.
{{- end }}
{{- end }}
