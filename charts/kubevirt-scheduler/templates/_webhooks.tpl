{{/* Which pods the API server shows to us. */}}

{{/* kube-system, so that the cluster comes up without us; ours, so that we do. */}}
{{- define "kubevirt-scheduler.excludedNamespaces" -}}
{{- concat (list "kube-system" .Release.Namespace) (default (list) .Values.webhook.excludedNamespaces) | uniq | toYaml -}}
{{- end }}

{{/* True where a pod in `test.namespace` would be shown to us. Not where the chart itself was installed into `default`. */}}
{{- define "kubevirt-scheduler.testable" -}}
{{- if not (has .Values.test.namespace (include "kubevirt-scheduler.excludedNamespaces" . | fromYamlArray)) -}}
true
{{- end }}
{{- end }}

{{/* One of the annotations is exactly "true". Their keys are held to their alphabet by the schema: no quote gets in. */}}
{{- define "kubevirt-scheduler.optedIn" -}}
has(object.metadata.annotations) && ['{{ join "', '" .Values.settings.optInAnnotations }}'].exists(key, key in object.metadata.annotations && object.metadata.annotations[key] == 'true')
{{- end }}

{{/* No annotation is "false", or one is "true" as well. Namespaces and StorageClasses decide on the rest, in the webhook. */}}
{{- define "kubevirt-scheduler.notOptedOut" -}}
{{- $keys := printf "['%s']" (join "', '" .Values.settings.optInAnnotations) -}}
!has(object.metadata.annotations) || {{ $keys }}.exists(key, key in object.metadata.annotations && object.metadata.annotations[key] == 'true') || !{{ $keys }}.exists(key, key in object.metadata.annotations && object.metadata.annotations[key] == 'false')
{{- end }}

{{/* A pod that we would leave alone never waits for us, and no outage of ours concerns it. An observer sees every VM. */}}
{{- define "kubevirt-scheduler.matchConditions" -}}
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
# KubeVirt chooses where a migration goes, unless `settings.migrationTargets` or `settings.schedulerNames` says otherwise.
- name: no-migration-target
  expression: {{ include "kubevirt-scheduler.noMigrationTarget" . | quote }}
{{- end }}
{{- end }}

{{/* True where a migration's target is reviewed: its node may be preferred, or its scheduler's name mapped. */}}
{{- define "kubevirt-scheduler.reviewsMigrations" -}}
{{- if or (eq .Values.settings.migrationTargets "prefer") (include "kubevirt-scheduler.schedulerNames" . | fromJson) -}}
true
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.noMigrationTarget" -}}
!has(object.metadata.labels) || !('kubevirt.io/migrationJobUID' in object.metadata.labels) || object.metadata.labels['kubevirt.io/migrationJobUID'] == ''
{{- end }}

{{/* What both webhooks have. No caBundle: it is not ours to render, so that no upgrade can empty it. */}}
{{- define "kubevirt-scheduler.called" -}}
clientConfig:
  service:
    namespace: {{ .Release.Namespace | quote }}
    name: {{ include "kubevirt-scheduler.fullname" . }}
    port: {{ .Values.service.port }}
    path: /mutate
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods]
    operations: [CREATE]
    scope: Namespaced
admissionReviewVersions: [v1]
# Events are written about what really happens only.
sideEffects: NoneOnDryRun
matchPolicy: Equivalent
reinvocationPolicy: {{ .Values.webhook.reinvocationPolicy }}
timeoutSeconds: {{ .Values.webhook.timeoutSeconds }}
{{- end }}
