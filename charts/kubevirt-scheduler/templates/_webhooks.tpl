{{/* The pods that the API server sends to the webhook. */}}

{{/* Exclude kube-system, so that the cluster starts without the webhook, and the release's namespace, so that the webhook itself does. */}}
{{- define "kubevirt-scheduler.excludedNamespaces" -}}
{{- concat (list "kube-system" .Release.Namespace) (default (list) .Values.webhook.excludedNamespaces) | uniq | toYaml -}}
{{- end }}

{{/* The namespaces whose VMs can be opted in: for the API server, and for the program's votes and predictions. */}}
{{- define "kubevirt-scheduler.namespaceSelector" -}}
{{- $selector := default (dict) .Values.webhook.namespaceSelector -}}
{{- with $selector.matchLabels -}}
matchLabels:
  {{- toYaml . | nindent 2 }}
{{ end -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
      {{- include "kubevirt-scheduler.excludedNamespaces" . | nindent 6 }}
  {{- with $selector.matchExpressions }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* True if the API server sends pods of `test.namespace` to the webhook: not if the chart is installed into `default`. */}}
{{- define "kubevirt-scheduler.testable" -}}
{{- if not (has .Values.test.namespace (include "kubevirt-scheduler.excludedNamespaces" . | fromYamlArray)) -}}
true
{{- end }}
{{- end }}

{{/* The accounts of KubeVirt's controllers: as the values name them, else beside the KubeVirt object, else in the usual namespaces. `helm template` doesn't see the cluster. */}}
{{- define "kubevirt-scheduler.kubevirtAccounts" -}}
{{- $accounts := default (list) .Values.settings.kubevirtAccounts -}}
{{- if not $accounts }}
  {{- $namespaces := list "kubevirt" "openshift-cnv" "harvester-system" "kubevirt-hyperconverged" -}}
  {{- if .Capabilities.APIVersions.Has "kubevirt.io/v1/KubeVirt" }}
    {{- $found := list -}}
    {{- range (lookup "kubevirt.io/v1" "KubeVirt" "" "").items }}{{ $found = append $found .metadata.namespace }}{{ end -}}
    {{- $namespaces = default $namespaces $found -}}
  {{- end }}
  {{- range $namespaces }}{{ $accounts = append $accounts (printf "system:serviceaccount:%s:kubevirt-controller" .) }}{{ end -}}
{{- end }}
{{- toYaml $accounts -}}
{{- end }}

{{/* A tenant can create a pod with the labels and annotations of a VM. The account of `helm test` may send dry runs, to see that the webhook is called. */}}
{{- define "kubevirt-scheduler.fromKubeVirt" -}}
has(request.userInfo.username) && (request.userInfo.username in ['{{ join "', '" (include "kubevirt-scheduler.kubevirtAccounts" . | fromYamlArray) }}'] || (has(request.dryRun) && request.dryRun && request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "kubevirt-scheduler.fullname" . }}-test'))
{{- end }}

{{/* One of the annotations is exactly "true". The schema restricts the keys, so they can't contain a quote. */}}
{{- define "kubevirt-scheduler.optedIn" -}}
has(object.metadata.annotations) && ['{{ join "', '" .Values.settings.optInAnnotations }}'].exists(key, key in object.metadata.annotations && object.metadata.annotations[key] == 'true')
{{- end }}

{{/* No annotation is "false", or one is "true" as well. For pods without such an annotation, the webhook evaluates namespace and StorageClass. */}}
{{- define "kubevirt-scheduler.notOptedOut" -}}
{{- $keys := printf "['%s']" (join "', '" .Values.settings.optInAnnotations) -}}
!has(object.metadata.annotations) || {{ $keys }}.exists(key, key in object.metadata.annotations && object.metadata.annotations[key] == 'true') || !{{ $keys }}.exists(key, key in object.metadata.annotations && object.metadata.annotations[key] == 'false')
{{- end }}

{{/* Pods that the webhook would ignore don't wait for it, and an outage doesn't affect them. In observe mode, the webhook reviews every VM. */}}
{{- define "kubevirt-scheduler.matchConditions" -}}
- name: from-kubevirt
  expression: {{ include "kubevirt-scheduler.fromKubeVirt" . | quote }}
{{- if ne .Values.settings.action "observe" }}
{{- if eq .Values.settings.optIn "namespace" }}
- name: not-opted-out
  expression: {{ include "kubevirt-scheduler.notOptedOut" . | quote }}
{{- else }}
- name: opted-in
  expression: {{ include "kubevirt-scheduler.optedIn" . | quote }}
{{- end }}
{{- end }}
{{- if not (include "kubevirt-scheduler.reviewsMigrations" .) }}
# KubeVirt chooses the node of a migration, unless `settings.migrationTargets` or `settings.schedulerNames` applies.
- name: no-migration-target
  expression: {{ include "kubevirt-scheduler.noMigrationTarget" . | quote }}
{{- end }}
{{- end }}

{{/* True if the webhook reviews migration targets, to prefer a node or to map the scheduler's name. */}}
{{- define "kubevirt-scheduler.reviewsMigrations" -}}
{{- if or (eq .Values.settings.migrationTargets "prefer") (include "kubevirt-scheduler.schedulerNames" . | fromJson) -}}
true
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.noMigrationTarget" -}}
!has(object.metadata.labels) || !('kubevirt.io/migrationJobUID' in object.metadata.labels) || object.metadata.labels['kubevirt.io/migrationJobUID'] == ''
{{- end }}

{{/* The common part of both webhooks. It has no caBundle, so that no upgrade can empty it. */}}
{{- define "kubevirt-scheduler.called" -}}
clientConfig:
  service:
    namespace: {{ .Release.Namespace | quote }}
    name: {{ include "kubevirt-scheduler.fullname" . }}
    port: 443
    path: /mutate
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods]
    operations: [CREATE]
    scope: Namespaced
admissionReviewVersions: [v1]
# The webhook writes Events, but not for dry runs.
sideEffects: NoneOnDryRun
matchPolicy: Equivalent
# A later webhook's change may invalidate the pin.
reinvocationPolicy: IfNeeded
timeoutSeconds: {{ .Values.webhook.timeoutSeconds }}
{{- end }}
