{{/* Alerts about the serving certificate, its CA and the caBundle. */}}

{{- define "kubevirt-scheduler.alerts.certificates" -}}
{{- $of := include "kubevirt-scheduler.alerts.of" . }}
{{- /* The certificate is valid for 30 days, and the renewal is due when a third is left. The alerts fire at a quarter, and at the length of a weekend. */}}
{{- range $severity, $left := dict "warning" (list 648000 "7.5 days") "critical" (list 172800 "two days") }}
- alert: KubevirtSchedulerCertificateExpiring
  expr: min(kubevirt_scheduler_certificate_expiry_seconds{ {{- $of -}} ,certificate="leaf"}) < {{ first $left }}
  for: 1h
  labels:
    severity: {{ $severity }}
  annotations:
    summary: The serving certificate was not renewed and expires in {{ `{{ $value | humanizeDuration }}` }}.
    description: Less than {{ last $left }} are left. `kubevirt-scheduler certs status` gives the cause.
{{- end }}
- alert: KubevirtSchedulerCertificateUnusable
  expr: max by (pod) (kubevirt_scheduler_certificate_unusable{ {{- $of -}} }) > 0
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: The webhook can't use its new serving certificate, and serves the old one until that expires.
    description: "Check /readyz?verbose of {{ `{{ $labels.pod }}` }}: it names the file and the problem."
{{- if include "kubevirt-scheduler.clientCA" . }}
- alert: KubevirtSchedulerClientCaExpiring
  # After the expiry of the last client CA, the webhook accepts no API server.
  expr: min(kubevirt_scheduler_certificate_expiry_seconds{ {{- $of -}} ,certificate="client-ca"}) < 1209600
  for: 1h
  labels:
    severity: warning
  annotations:
    summary: The client CA expires in {{ `{{ $value | humanizeDuration }}` }}.
    description: Less than 14 days are left. A rotation needs a new certificate on each control-plane node.
- alert: KubevirtSchedulerClientCaUnusable
  expr: max by (pod) (kubevirt_scheduler_client_ca_unusable{ {{- $of -}} }) > 0
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: The webhook can't use its new client CA, and keeps the old one.
    description: "Check /readyz?verbose of {{ `{{ $labels.pod }}` }}: it names the file and the problem."
{{- end }}
{{- if eq .Values.certificates.source "self" }}
{{- range $severity, $left := dict "warning" (list 7884000 "91 days") "critical" (list 2592000 "30 days, the lifetime of a certificate,") }}
- alert: KubevirtSchedulerCaExpiring
  expr: min(kubevirt_scheduler_certificate_expiry_seconds{ {{- $of -}} ,certificate="ca"}) < {{ first $left }}
  for: 1d
  labels:
    severity: {{ $severity }}
  annotations:
    summary: The CA was not rotated and expires in {{ `{{ $value | humanizeDuration }}` }}.
    description: Less than {{ last $left }} are left. `kubevirt-scheduler certs status` gives the cause.
{{- end }}
- alert: KubevirtSchedulerCertificateReissued
  # One renewal is due in 20 days.
  expr: sum by (step) (increase(kubevirt_scheduler_certificate_steps_total{ {{- $of -}} ,step=~"start|renew"}[1h])) > 5
  labels:
    severity: critical
  annotations:
    summary: The webhook issues its certificate repeatedly ({{ `{{ $labels.step }}` }}).
    description: Calls fail until the API server trusts the newest CA. Look for a node whose clock is wrong by weeks, and for another writer of the Secret.
{{- end }}
{{- if ne .Values.certificates.source "cert-manager" }}
- alert: KubevirtSchedulerCertificateFails
  # A replica fails 6 times in 30 s if the API server is down, and 27 times in 15 minutes if the API server doesn't respond,
  # because a pass then takes 10 s. A conflict is normal: another replica wrote first.
  expr: max by (cause) (increase(kubevirt_scheduler_certificate_failures_total{ {{- $of -}} ,cause!="conflict"}[15m])) > 20
  labels:
    severity: warning
  annotations:
    summary: The webhook can't maintain its certificate ({{ `{{ $labels.cause }}` }}).
    description: The current certificate stays in use. The runbook has a remedy for each cause.
- alert: KubevirtSchedulerCaBundleOverwritten
  expr: sum(increase(kubevirt_scheduler_certificate_repairs_total{ {{- $of -}} }[1h])) > 3
  labels:
    severity: warning
  annotations:
    summary: Another program repeatedly overwrites the caBundle.
    description: Calls fail until the webhook repairs it. Look for a GitOps tool or an injector, and make it ignore the field.
{{- end }}
{{- end }}
