{{/* Names, labels and images: what several objects must agree on. */}}

{{- define "kubevirt-scheduler.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* 40 characters leave room for what is appended, below the 63 of a Service's name and of a label's value. */}}
{{- define "kubevirt-scheduler.fullname" -}}
{{- $name := include "kubevirt-scheduler.name" . -}}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{- default $full .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "kubevirt-scheduler.scheduler.fullname" -}}
{{ include "kubevirt-scheduler.fullname" . }}-kube-scheduler
{{- end }}

{{/* The one name in the serving certificate: by it, and by no other, the API server calls a Service. */}}
{{- define "kubevirt-scheduler.host" -}}
{{ include "kubevirt-scheduler.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "kubevirt-scheduler.tlsSecretName" -}}
{{- if eq .Values.certificates.source "provided" -}}
{{ .Values.certificates.secretName }}
{{- else if eq .Values.certificates.source "cert-manager" -}}
{{/* A name of its own: cert-manager keeps it, and Helm makes no Secret where somebody else's is, should the source be "self" one day. */}}
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

{{/* What a selector selects by: it can never be changed, so nothing from the values is in it but `nameOverride`. Takes (dict "root" $ "component" "webhook"). */}}
{{- define "kubevirt-scheduler.selectorLabels" -}}
app.kubernetes.io/name: {{ include "kubevirt-scheduler.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* The labels of an object. Not those of a pod template: the version in them would restart every pod with each new chart. */}}
{{- define "kubevirt-scheduler.labels" -}}
{{- /* One map: a key that is there twice Helm takes, and Flux does not. */ -}}
{{- merge (dict) (default (dict) .more) (default (dict) .root.Values.commonLabels) (include "kubevirt-scheduler.ownLabels" . | fromYaml) | toYaml }}
{{- end }}

{{- define "kubevirt-scheduler.ownLabels" -}}
{{ include "kubevirt-scheduler.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kubevirt-scheduler.image" -}}
{{- with .Values.image -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.scheduler.version" -}}
{{ regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version }}
{{- end }}

{{/* The cluster's version without what a distribution adds to it (v1.33.1-eks-1): by it upstream's images are tagged. */}}
{{- define "kubevirt-scheduler.scheduler.image" -}}
{{- $upstream := .Values.scheduler.loadAware.enabled | ternary "scheduler-plugins/kube-scheduler" "kube-scheduler" -}}
{{- $version := include "kubevirt-scheduler.scheduler.version" . -}}
{{- with .Values.scheduler.image -}}
{{ default (printf "registry.k8s.io/%s" $upstream) .repository }}:{{ default $version .tag }}
{{- end }}
{{- end }}

{{/* `settings.schedulerNames` as JSON, without the keys that were taken out: `--set ...=null` leaves them there, empty. */}}
{{- define "kubevirt-scheduler.schedulerNames" -}}
{{- $names := dict -}}
{{- range $name, $target := .Values.settings.schedulerNames }}{{ with $target }}{{ $_ := set $names $name . }}{{ end }}{{ end -}}
{{- toJson $names -}}
{{- end }}
