{{/* The labels of selectors. */}}
{{- define "secondary-scheduler.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "secondary-scheduler.labels" -}}
labels:
  {{- include "secondary-scheduler.selectorLabels" . | nindent 2 }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The tag is the cluster's version without a distribution's suffix (v1.33.1-eks-1), because upstream's images have such tags. */}}
{{- define "secondary-scheduler.tag" -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{- if not (or .Values.image.tag $version) }}
  {{- fail (printf "image.tag: the cluster's version, %s, has no patch number (--kube-version), so it selects no image. Set the tag, such as v1.36.3." .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- default $version .Values.image.tag -}}
{{- end }}

{{- define "secondary-scheduler.config" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  # A separate Lease: the default, `kube-scheduler`, belongs to the cluster's own scheduler.
  resourceName: {{ .Values.name }}
  resourceNamespace: {{ .Release.Namespace | quote }}
# With a configuration file, the scheduler ignores the flag for profiling.
enableProfiling: false
profiles:
  - {{- merge (dict "schedulerName" .Values.name) (default (dict) .Values.profile) | toYaml | nindent 4 }}
{{- end }}

{{/* Spread replicas if possible. A second replica on the same node is better than none. */}}
{{- define "secondary-scheduler.spread" -}}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "secondary-scheduler.selectorLabels" $ | nindent 6 }}
  # Otherwise the pods of the old ReplicaSet count too, and the new ones may all run on one node.
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}

{{/* OpenShift assigns user ids per namespace, and its SCC restricted-v2 refuses others. */}}
{{- define "secondary-scheduler.podSecurityContext" -}}
{{- $user := .Capabilities.APIVersions.Has "security.openshift.io/v1" | ternary (dict) (dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532) }}
{{- mergeOverwrite (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $user (default (dict) .Values.podSecurityContext) | toYaml }}
{{- end }}

{{/* Takes (dict "root" $ "name" NAME "role" ROLE "kind" KIND "namespace" NAMESPACE). Without a namespace, a ClusterRoleBinding. */}}
{{- define "secondary-scheduler.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "RoleBinding" "ClusterRoleBinding" (hasKey . "namespace") }}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  {{- include "secondary-scheduler.labels" .root | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .role }}
subjects:
  - kind: ServiceAccount
    namespace: {{ .root.Release.Namespace | quote }}
    name: {{ .root.Release.Name }}
{{- end }}
