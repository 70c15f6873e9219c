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

{{/*
Forged entries of managedFields would make each `helm upgrade` fail, so no entry may gain or lose a field, except for those that
the webhook writes: it may take them over from another client. `owned` is a condition on field `key` of entry `one`, in which
`OTHER(` finds the same entry before or after the change. These validations come last, because each changed field has a new owner.

Once an object has ten entries of updates, the API server itself moves the oldest ones into the entry "ancient-changes", during any
write that adds one: https://github.com/kubernetes/kubernetes/blob/v1.36.0/staging/src/k8s.io/apimachinery/pkg/util/managedfields/internal/capmanagers.go
*/}}
{{- define "kubevirt-scheduler.policy.owners" -}}
{{- $moved := "variables.ownersBefore.exists(other, other.operation == 'Update' && key in other.fieldsV1 && part in other.fieldsV1[key]" }}
{{- $gained := printf "one.manager == 'ancient-changes' && one.fieldsV1[key].all(part, %s) && one.fieldsV1[key][part].all(name, %s && name in other.fieldsV1[key][part] && other.fieldsV1[key][part][name] == one.fieldsV1[key][part][name])))" $moved $moved }}
{{- $lost := "one.operation == 'Update' && (one.manager == 'ancient-changes' || !variables.ownersAfter.exists(other, other.manager == one.manager && other.operation == one.operation))" }}
{{- range list (list "ownersAfter" "ownersBefore" $gained) (list "ownersBefore" "ownersAfter" $lost) }}
{{- $other := printf "variables.%s.exists(other, other.manager == one.manager && other.operation == one.operation && other.apiVersion == one.apiVersion && has(other.subresource) == has(one.subresource) && key in other.fieldsV1 && " (index . 1) }}
- expression: >-
    variables.{{ first . }}.all(one, one.fieldsV1.all(key, {{ $.owned | replace "OTHER(" $other }} ||
    {{ $other }}other.fieldsV1[key] == one.fieldsV1[key]) ||
    (variables.isFull && {{ last . }})))
  message: The webhook may not change who manages the other fields of its {{ $.kind }}.
  reason: Forbidden
{{- end }}
{{- end }}

{{/* With `dyn`, the expressions cover every field, also those that later versions of Kubernetes add. */}}
{{- define "kubevirt-scheduler.policy.variables" -}}
- name: before
  expression: dyn(oldObject)
- name: after
  expression: dyn(object)
{{- range list "before" "after" }}
- name: owners{{ title . }}
  expression: "has(variables.{{ . }}.metadata.managedFields) ? variables.{{ . }}.metadata.managedFields.filter(one, has(one.fieldsV1)) : []"
{{- end }}
- name: isFull
  expression: "variables.ownersBefore.filter(one, one.operation == 'Update').size() >= 10"
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
