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
{{- if eq (int .Values.service.port) 8080 }}
  {{- fail "service.port: 8080 is the Service's port for metrics. Choose another, such as 443." }}
{{- end }}
{{- if eq (int .Values.containerPorts.https) (int .Values.containerPorts.http) }}
  {{- fail (printf "containerPorts: https and http are both %v. Choose two ports." .Values.containerPorts.http) }}
{{- end }}
{{- if and .Values.hostNetwork (has 10250 (list (int .Values.containerPorts.https) (int .Values.containerPorts.http))) }}
  {{- fail "containerPorts: with hostNetwork, 10250 is the kubelet's own port. Choose another, such as 8443." }}
{{- end }}
{{- if and .Values.hostNetwork .Values.networkPolicy.enabled }}
  {{- fail "networkPolicy: with hostNetwork the replicas have their nodes' addresses, for which no NetworkPolicy holds. Set networkPolicy.enabled=false, and guard the ports by the nodes' firewall." }}
{{- end }}
{{- include "kubevirt-scheduler.checks.labels" . }}
{{- include "kubevirt-scheduler.checks.images" . }}
{{- include "kubevirt-scheduler.checks.names" . }}
{{- include "kubevirt-scheduler.checks.certificates" . }}
{{- if and .Values.tls.clientCA.configMap .Values.tls.clientCA.secret }}
  {{- fail "tls.clientCA: configMap and secret are both set, and the client CA comes from one of them. Empty the other." }}
{{- end }}
{{- if .Values.scheduler.enabled }}
  {{- include "kubevirt-scheduler.checks.scheduler" . }}
{{- else if .Values.scheduler.loadAware.enabled }}
  {{- fail "scheduler.loadAware: it is a way to score nodes, for a scheduler that does not run. Set scheduler.enabled=true as well." }}
{{- end }}
{{- end }}

{{/* With others in their place the selectors would find nothing. */}}
{{- define "kubevirt-scheduler.checks.labels" -}}
{{- $ours := include "kubevirt-scheduler.selectorLabels" (dict "root" . "component" "webhook") | fromYaml -}}
{{- range $where := list "commonLabels" "podLabels" }}
  {{- range $key, $_ := default (dict) (index $.Values $where) }}
    {{- if hasKey $ours $key }}
      {{- fail (printf "%s: %s is what the selectors select by, and set by the chart. Choose another key." $where $key) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The tag is appended: with two of them no node can pull the image. */}}
{{- define "kubevirt-scheduler.checks.images" -}}
{{- range $where, $image := dict "image" .Values.image "scheduler.image" .Values.scheduler.image }}
  {{- if regexMatch "[:@][^/]*$" (default "" $image.repository) }}
    {{- fail (printf "%s.repository: %q ends in a tag or a digest. Leave it out there, and set %s.tag." $where $image.repository $where) }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The program refuses this map too, but only when it starts; here the old pods do not even notice. */}}
{{- define "kubevirt-scheduler.checks.names" -}}
{{- $full := include "kubevirt-scheduler.fullname" . -}}
{{- if contains "." $full }}
  {{- fail (printf "the release's name: all would be called %s, and the name of a Service has no dot. Set fullnameOverride." $full) }}
{{- end }}
{{- $names := include "kubevirt-scheduler.schedulerNames" . | fromJson -}}
{{- range $name, $target := $names }}
  {{- if ne (get $names $target | default $target) $target }}
    {{- fail (printf "settings.schedulerNames: %q leads to %q, which is mapped itself. Map %q to where it ends: %q." $name $target $name (get $names $target)) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.checks.certificates" -}}
{{- $own := printf "%s-tls" (include "kubevirt-scheduler.fullname" .) -}}
{{- with .Values.certificates }}
  {{- if eq .secretName $own }}
    {{- fail (printf "certificates.secretName: %s is the Secret that source=self has made for it, and that Helm deletes on the way from there. Copy what is to be kept into one of another name." $own) }}
  {{- end }}
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
{{- if not (or .Values.scheduler.image.tag .Values.scheduler.loadAware.enabled (include "kubevirt-scheduler.scheduler.version" .)) }}
  {{- fail (printf "scheduler.image.tag: by the cluster's version, %s, no image can be chosen, for its third number is not told (--kube-version). Name the tag, such as v1.36.3." .Capabilities.KubeVersion.Version) }}
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
{{- if eq .Values.scheduler.configSecret (include "kubevirt-scheduler.scheduler.fullname" .) }}
  {{- fail (printf "scheduler.configSecret: %s is the Secret that prometheus.token has made for it, and that Helm deletes on the way from there. Copy what is to be kept into one of another name." .Values.scheduler.configSecret) }}
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
