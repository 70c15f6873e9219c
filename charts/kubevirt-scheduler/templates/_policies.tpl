{{/* The common parts of the ValidatingAdmissionPolicies, and the right that one of them narrows. */}}

{{/* Whether the webhook may delete pods. In observe mode it never does. */}}
{{- define "kubevirt-scheduler.deletesPods" -}}
{{- if and .Values.release.enabled (eq .Values.settings.action "inject") -}}
true
{{- end }}
{{- end }}

{{/* An expression that fails denies the request (`failurePolicy: Fail`), so `has` excludes a user without a name. */}}
{{- define "kubevirt-scheduler.policy.account" -}}
- name: webhook-account
  expression: >-
    has(request.userInfo.username) &&
    request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:{{ include "kubevirt-scheduler.serviceAccountName" . }}'
{{- end }}

{{/* Validations of a change of one of the webhook's own objects. Takes the object's `kind`; `metadata` and `field` as parts of CEL lists: what may change; and `words` for `field`. */}}
{{- define "kubevirt-scheduler.policy.validations" -}}
# The API server changes these three fields with each update.
- expression: >-
    variables.after.metadata.all(field, field in ['generation', 'managedFields', 'resourceVersion', {{ .metadata }}] ||
    (field in variables.before.metadata && variables.after.metadata[field] == variables.before.metadata[field]))
    && variables.before.metadata.all(field, field in variables.after.metadata)
  message: The webhook may not change the metadata of its {{ .kind }}.
  reason: Forbidden
- expression: >-
    variables.after.all(field, field in ['metadata', {{ .field }}] ||
    (field in variables.before && variables.after[field] == variables.before[field]))
    && variables.before.all(field, field in ['metadata', {{ .field }}] || field in variables.after)
  message: The webhook may change only {{ .words }} in its {{ .kind }}.
  reason: Forbidden
{{- end }}

{{/* With `dyn`, the expressions cover every field, also those that later versions of Kubernetes add. */}}
{{- define "kubevirt-scheduler.policy.variables" -}}
- name: before
  expression: dyn(oldObject)
- name: after
  expression: dyn(object)
{{- end }}

{{- define "kubevirt-scheduler.policy.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  {{- include "kubevirt-scheduler.metadata" (dict "root" .root "component" "webhook") | nindent 2 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}
