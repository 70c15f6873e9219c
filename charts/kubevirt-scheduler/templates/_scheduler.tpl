{{/* The KubeSchedulerConfiguration of the named scheduler. */}}

{{- define "kubevirt-scheduler.scheduler.config" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  # A separate Lease: the default, `kube-scheduler`, belongs to the cluster's own scheduler.
  resourceName: {{ .Values.scheduler.name }}
  resourceNamespace: {{ .Release.Namespace | quote }}
# With a configuration file, the scheduler ignores the flag for profiling.
enableProfiling: false
profiles:
  - schedulerName: {{ .Values.scheduler.name }}
    {{- if .Values.scheduler.loadAware.enabled }}
    {{- include "kubevirt-scheduler.scheduler.loadAware" . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* https://github.com/kubernetes-sigs/scheduler-plugins/tree/master/pkg/trimaran */}}
{{- define "kubevirt-scheduler.scheduler.loadAware" -}}
{{- $loadAware := .Values.scheduler.loadAware -}}
plugins:
  score:
    enabled:
      - name: {{ $loadAware.plugin }}
    {{- if eq $loadAware.plugin "TargetLoadPacking" }}
    # These two spread pods by requests, against the packing.
    disabled:
      - name: NodeResourcesFit
      - name: NodeResourcesBalancedAllocation
    {{- end }}
pluginConfig:
  - name: {{ $loadAware.plugin }}
    args:
      metricProvider:
        type: {{ $loadAware.metricProvider }}
        {{- if eq $loadAware.metricProvider "Prometheus" }}
        address: {{ $loadAware.prometheus.address }}
        insecureSkipVerify: {{ $loadAware.prometheus.insecureSkipVerify }}
        {{- with $loadAware.prometheus.token }}
        token: {{ . | quote }}
        {{- end }}
        {{- end }}
      {{- if eq $loadAware.plugin "TargetLoadPacking" }}
      targetUtilization: {{ $loadAware.targetUtilization }}
      defaultRequestsMultiplier: {{ $loadAware.defaultRequestsMultiplier | quote }}
      {{- else if eq $loadAware.plugin "LoadVariationRiskBalancing" }}
      safeVarianceMargin: {{ $loadAware.safeVarianceMargin }}
      safeVarianceSensitivity: {{ $loadAware.safeVarianceSensitivity }}
      {{- else }}
      smoothingWindowSize: {{ $loadAware.smoothingWindowSize }}
      riskLimitWeights:
        {{- toYaml $loadAware.riskLimitWeights | nindent 8 }}
      {{- end }}
{{- end }}
