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
