{{/* Names, labels and images that several objects share. */}}

{{- define "kubevirt-scheduler.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* With 40 characters, names with a suffix stay below 63, the limit of a Service's name and of a label's value. */}}
{{- define "kubevirt-scheduler.fullname" -}}
{{- $name := include "kubevirt-scheduler.name" . -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "kubevirt-scheduler.leaseName" -}}
{{ include "kubevirt-scheduler.fullname" . }}-release
{{- end }}

{{/* The only name in the serving certificate: the API server calls a Service by this name. */}}
{{- define "kubevirt-scheduler.host" -}}
{{ include "kubevirt-scheduler.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "kubevirt-scheduler.tlsSecretName" -}}
{{- if eq .Values.certificates.source "provided" -}}
{{ .Values.certificates.secretName }}
{{- else if eq .Values.certificates.source "cert-manager" -}}
{{/* A separate name: cert-manager keeps its Secret, and Helm couldn't create its own one if the source becomes "self". */}}
{{- include "kubevirt-scheduler.fullname" . }}-cert-manager-tls
{{- else -}}
{{ include "kubevirt-scheduler.fullname" . }}-tls
{{- end }}
{{- end }}

{{/* "true" if clients need a certificate, else nothing. */}}
{{- define "kubevirt-scheduler.clientCA" -}}
{{- if or .Values.tls.clientCA.configMap .Values.tls.clientCA.secret }}true{{ end -}}
{{- end }}

{{- define "kubevirt-scheduler.serviceAccountName" -}}
{{ default (include "kubevirt-scheduler.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{/* The labels of selectors. They can't be changed later, so the only value in them is `nameOverride`. Takes (dict "root" $ "component" "webhook"). */}}
{{- define "kubevirt-scheduler.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kubevirt-scheduler.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The labels of an object, but not of a pod template: the version would restart every pod with each new chart. */}}
{{- define "kubevirt-scheduler.labels" -}}
{{- /* One map, because Flux rejects duplicate keys. Helm accepts them. */ -}}
{{- merge (dict) (default (dict) .more) (default (dict) .root.Values.commonLabels) (include "kubevirt-scheduler.ownLabels" . | fromYaml) | toYaml }}
{{- end }}

{{/* The labels and annotations of an object; its own ones take precedence. Takes (dict "root" $ "component" "webhook" "more" LABELS "annotations" ANNOTATIONS). */}}
{{- define "kubevirt-scheduler.metadata" -}}
labels:
  {{- include "kubevirt-scheduler.labels" . | nindent 2 }}
{{- with merge (dict) (default (dict) .annotations) (default (dict) .root.Values.commonAnnotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.ownLabels" -}}
{{ include "kubevirt-scheduler.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kubevirt-scheduler.registry" -}}
{{- with default .registry (default (dict) .root.Values.global).imageRegistry }}{{ . }}/{{ end }}
{{- end }}

{{- define "kubevirt-scheduler.image" -}}
{{- with .Values.image -}}
{{ include "kubevirt-scheduler.registry" (dict "root" $ "registry" .registry) }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{/* The pull secrets of the chart and of a parent chart, each once. A parent chart may give names alone. */}}
{{- define "kubevirt-scheduler.imagePullSecrets" -}}
{{- $secrets := list }}
{{- range concat (default (list) .Values.imagePullSecrets) (default (list) (default (dict) .Values.global).imagePullSecrets) }}
  {{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- with uniq $secrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* `settings.schedulerNames` as JSON, without the keys that are null: `--set ...=null` keeps the key. */}}
{{- define "kubevirt-scheduler.schedulerNames" -}}
{{- $names := dict -}}
{{- range $name, $target := .Values.settings.schedulerNames }}{{ with $target }}{{ $_ := set $names $name . }}{{ end }}{{ end -}}
{{- toJson $names -}}
{{- end }}
