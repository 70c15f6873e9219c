{{/* The common parts of the chart's pods: the settings, and the lack of rights on their node. */}}

{{- define "kubevirt-scheduler.settings" -}}
{{- with .Values.settings -}}
- name: CO_SCHEDULE_NAMESPACE_SELECTOR
  value: {{ include "kubevirt-scheduler.namespaceSelector" $ | fromYaml | toJson | quote }}
- name: CO_SCHEDULE_AFFINITY_MODE
  value: {{ .affinityMode }}
- name: CO_SCHEDULE_NODE_GUARD
  value: {{ .nodeGuard | quote }}
- name: CO_SCHEDULE_REPLICA_LOCALITY
  value: {{ .replicaLocality }}
- name: CO_SCHEDULE_STEERING
  value: {{ .steering | quote }}
- name: CO_SCHEDULE_ACTION
  value: {{ .action }}
- name: CO_SCHEDULE_OPT_IN
  value: {{ .optIn }}
- name: CO_SCHEDULE_OPT_IN_ANNOTATIONS
  value: {{ join "," .optInAnnotations | quote }}
- name: CO_SCHEDULE_LONGHORN_NAMESPACE
  value: {{ .longhornNamespace | quote }}
- name: CO_SCHEDULE_KUBEVIRT_ACCOUNTS
  value: {{ join "," (include "kubevirt-scheduler.kubevirtAccounts" $ | fromYamlArray) | quote }}
- name: CO_SCHEDULE_MIGRATION_TARGETS
  value: {{ .migrationTargets }}
- name: CO_SCHEDULE_RELEASE
  value: {{ $.Values.release.enabled | quote }}
- name: CO_SCHEDULE_RELEASE_AFTER
  value: {{ $.Values.release.after | quote }}
- name: CO_SCHEDULE_SCHEDULER_NAMES
  value: {{ include "kubevirt-scheduler.schedulerNames" $ | quote }}
- name: CO_SCHEDULE_LOG_LEVEL
  value: {{ .logLevel }}
{{- end }}
{{- end }}

{{/* OpenShift assigns user ids per namespace, and its SCC restricted-v2 refuses others. "auto" is the only string. */}}
{{- define "kubevirt-scheduler.podSecurityContext" -}}
{{- $here := .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- $openshift := kindIs "string" .Values.openshift | ternary $here .Values.openshift -}}
{{- $ids := $openshift | ternary (dict) (dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532) -}}
{{- $ours := merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $ids -}}
{{- mergeOverwrite $ours (default (dict) .Values.podSecurityContext) | toYaml -}}
{{- end }}

{{/* Processes write to /dev/shm, the memory that every runtime mounts into a pod, so they need no volume. */}}
{{- define "kubevirt-scheduler.securityContext" -}}
{{- $ours := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- mergeOverwrite $ours (default (dict) .Values.securityContext) | toYaml -}}
{{- end }}

{{/* Prefer another node, and another zone, for each replica. A second replica on the same node is better than none. Not `topologySpreadConstraints`:
     their scores ignore a node that lacks the label of any constraint, so on nodes without a zone even the nodes didn't count.
     https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/scheduler/framework/plugins/podtopologyspread/scoring.go#L87 */}}
{{- define "kubevirt-scheduler.spread" -}}
preferredDuringSchedulingIgnoredDuringExecution:
{{- range $term := list (list "kubernetes.io/hostname" 100) (list "topology.kubernetes.io/zone" 50) }}
  - weight: {{ last $term }}
    podAffinityTerm:
      topologyKey: {{ first $term }}
      labelSelector:
        matchLabels:
          {{- include "kubevirt-scheduler.selectorLabels" $ | nindent 10 }}
      # Otherwise the pods of the old ReplicaSet count too, and the new ones may all run on one node of two. Kubernetes 1.30 drops this field:
      # https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/features/kube_features.go#L1824
      matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}

{{/* The annotations of an object of `helm test`. Takes the weight: objects of a lower weight are created first. */}}
{{- define "kubevirt-scheduler.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
