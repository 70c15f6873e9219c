{{/* What no schema can say: one value against another. Each ends the installation with where, what, and what to do. */}}

{{- define "kubevirt-scheduler.checks" -}}
{{- if and (ne .Values.test.namespace "default") (not (include "kubevirt-scheduler.testable" .)) }}
  {{- fail (printf "test.namespace: the webhook never looks at %q, so `helm test` would fail there. Name another namespace, such as default." .Values.test.namespace) }}
{{- end }}
{{- range .Values.extraEnv }}
  {{- if hasPrefix "CO_SCHEDULE_" .name }}
    {{- fail (printf "extraEnv: %s is a setting, and would be there twice. Set it under `settings` instead." .name) }}
  {{- end }}
{{- end }}
{{- if ge (int .Values.shutdown.preStopSeconds) (int .Values.shutdown.gracePeriodSeconds) }}
  {{- fail (printf "shutdown: with preStopSeconds %v of gracePeriodSeconds %v nothing is left to answer what is under way. Raise gracePeriodSeconds." .Values.shutdown.preStopSeconds .Values.shutdown.gracePeriodSeconds) }}
{{- end }}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
  {{- fail "serviceAccount: with create=false, name an account that exists in serviceAccount.name." }}
{{- end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.apiServers) }}
  {{- fail "networkPolicy.apiServers: without the addresses of the API servers (CIDRs, such as 192.0.2.0/28) nobody could call the webhook. Name them, or leave networkPolicy.enabled false." }}
{{- end }}
{{- include "kubevirt-scheduler.checks.names" . }}
{{- include "kubevirt-scheduler.checks.certificates" . }}
{{- if .Values.scheduler.enabled }}
  {{- include "kubevirt-scheduler.checks.scheduler" . }}
{{- else if .Values.scheduler.loadAware.enabled }}
  {{- fail "scheduler.loadAware: it is a way to score nodes, for a scheduler that does not run. Set scheduler.enabled=true as well." }}
{{- end }}
{{- end }}

{{/* The program refuses this map too, but only when it starts; here the old pods do not even notice. */}}
{{- define "kubevirt-scheduler.checks.names" -}}
{{- $names := .Values.settings.schedulerNames -}}
{{- range $name, $target := $names }}
  {{- if ne (get $names $target | default $target) $target }}
    {{- fail (printf "settings.schedulerNames: %q leads to %q, which is mapped itself. Map %q to where it ends: %q." $name $target $name (get $names $target)) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.checks.certificates" -}}
{{- with .Values.certificates }}
  {{- if and (eq .source "provided") (not .secretName) }}
    {{- fail "certificates.secretName: with source=provided, name the Secret that holds tls.crt, tls.key and ca.crt." }}
  {{- end }}
  {{- if and (ne .source "provided") .secretName }}
    {{- fail (printf "certificates.secretName: it is read with source=provided only, and source is %s. Change the one or the other." .source) }}
  {{- end }}
  {{- if and (ne .source "cert-manager") .issuerRef.name }}
    {{- fail (printf "certificates.issuerRef: it is used with source=cert-manager only, and source is %s. Change the one or the other." .source) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.checks.scheduler" -}}
{{- $prometheus := .Values.scheduler.loadAware.prometheus -}}
{{- if eq .Values.scheduler.name "default-scheduler" }}
  {{- fail "scheduler.name: the cluster's own scheduler is called default-scheduler, and both would place the same pods. Choose another name." }}
{{- end }}
{{- if .Values.scheduler.loadAware.enabled }}
  {{- if not .Values.scheduler.image.tag }}
    {{- fail (printf "scheduler.image.tag: the load-aware plugins are in an image of their own. Name the release of kubernetes-sigs/scheduler-plugins that is built from a Kubernetes not newer than yours, %s: v0.34.7 is built from 1.34.7." .Capabilities.KubeVersion.Version) }}
  {{- end }}
  {{- if eq .Values.scheduler.loadAware.metricProvider "Prometheus" }}
    {{- if not (or $prometheus.address .Values.scheduler.configSecret) }}
      {{- fail "scheduler.loadAware.prometheus.address: with metricProvider=Prometheus, say where it is, such as https://prometheus-k8s.monitoring.svc:9090." }}
    {{- end }}
  {{- else if or $prometheus.address $prometheus.token $prometheus.caConfigMap }}
    {{- fail (printf "scheduler.loadAware.prometheus: it is asked with metricProvider=Prometheus only, and metricProvider is %s. Change the one or the other." .Values.scheduler.loadAware.metricProvider) }}
  {{- end }}
{{- end }}
{{- if $prometheus.token }}
  {{- if .Values.scheduler.configSecret }}
    {{- fail "scheduler.configSecret: it holds the whole configuration, so that prometheus.token would go nowhere. Put the token into that Secret's config.yaml." }}
  {{- end }}
  {{- if hasPrefix "http://" $prometheus.address }}
    {{- fail "scheduler.loadAware.prometheus: over http:// the token could be read by anyone in between. Use https://." }}
  {{- end }}
{{- end }}
{{- end }}
