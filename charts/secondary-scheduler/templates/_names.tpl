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

{{/* Prefer another node, and another zone, for each replica. A second replica on the same node is better than none. Not `topologySpreadConstraints`:
     their scores ignore a node that lacks the label of any constraint, so on nodes without a zone even the nodes didn't count.
     https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/scheduler/framework/plugins/podtopologyspread/scoring.go#L87 */}}
{{- define "secondary-scheduler.spread" -}}
preferredDuringSchedulingIgnoredDuringExecution:
{{- range $term := list (list "kubernetes.io/hostname" 100) (list "topology.kubernetes.io/zone" 50) }}
  - weight: {{ last $term }}
    podAffinityTerm:
      topologyKey: {{ first $term }}
      labelSelector:
        matchLabels:
          {{- include "secondary-scheduler.selectorLabels" $ | nindent 10 }}
      # Otherwise the pods of the old ReplicaSet count too, and the new ones may all run on one node of two. Kubernetes 1.30 drops this field:
      # https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/features/kube_features.go#L1824
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
