{{/* Alerts about VMs: which start unmodified, softened or not at all, and which run apart from their storage. */}}

{{- define "kubevirt-scheduler.alerts.vms" -}}
{{- $of := include "kubevirt-scheduler.alerts.of" . }}
{{- $releases := include "kubevirt-scheduler.deletesPods" . }}
- alert: KubevirtSchedulerRejected
  # Only the API servers count rejections, so Prometheus must scrape them too.
  expr: sum by (name, error_type) ({{ include "kubevirt-scheduler.alerts.apiserverIncrease" "apiserver_admission_webhook_rejection_count" }}) > 0
  labels:
    severity: critical
  annotations:
    summary: The API server rejected pods because of the webhook ({{ `{{ $labels.name }}` }}, {{ `{{ $labels.error_type }}` }}).
    description: Opted-in VMs don't start. The webhook never rejects a pod, so the call failed{{ if eq .Values.webhook.failurePolicy "Fail" }} (webhook.failurePolicy is Fail){{ end }}, or the API server couldn't apply the patch.
{{- $failed := printf "sum by (name) (%s) > 0" (include "kubevirt-scheduler.alerts.apiserverIncrease" "apiserver_admission_webhook_fail_open_count") }}
{{- /* Each replica sees the whole cluster, hence `max`. A pod counts for an hour after its creation. */}}
{{- $missed := printf "max(kubevirt_scheduler_undecided_pods{%s}) > 0" $of }}
{{- $errors := printf "sum(increase(kubevirt_scheduler_decisions_total{%s,reason=\"InternalError\"}[15m])) > 0" $of }}
{{- $uncaught := printf "sum(increase(kubevirt_scheduler_uncaught_errors_total{%s}[15m])) > 0" $of }}
- alert: KubevirtSchedulerUndecided
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" (list "call-failed" $failed "no-decision" $missed "internal-error" $errors "uncaught-error" $uncaught) | nindent 4 }}
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: The API server created pods without a decision of the webhook ({{ `{{ $labels.cause }}{{ with $labels.name }}, {{ . }}{{ end }}` }}).
    description: >-
      These VMs may run apart from their storage. `call-failed`: the response was late, or the call failed; check that the replicas are ready, and
      that the API server trusts their certificate and reaches their port. `no-decision`: opted-in VMs started within an hour and the webhook didn't
      decide; `kubevirt-scheduler doctor` names them, and says whether the API server calls the webhook for the account of your KubeVirt controller.
      `internal-error`, `uncaught-error`: an unexpected error in the webhook; its log has the traceback, please report it. The second one ended a thread:
      restart the replica.
{{- $starts := printf "kubevirt_scheduler_decisions_total{%s,subject=\"vm\",action=\"inject\",mode=\"required\"" $of }}
{{- $reasons := "CacheStale|NodeNotFound|NodeNotReady|NodeCordoned|NodeTainted|NodeMismatch|VolumeMismatch|NodeFull|PodAffinity|Released|StartFailed|Unjudged" }}
{{- $softened := .Values.prometheusRule.thresholds.softened }}
{{- $refused := printf "sum(increase(%s,reason=~%q}[1h]))" $starts $reasons }}
{{- $all := printf "sum(increase(%s,reason=~%q}[1h]))" $starts (printf "CoScheduled|%s" $reasons) }}
{{- /* Five starts, so that a single VM on a quiet cluster doesn't fire the alert. */}}
{{- $causes := list "guard" (printf "%s / %s > %v and %s >= 5" $refused $all $softened $refused) }}
{{- if $releases }}
{{- /* Releases are rare: a node or share-manager must change between a pod's creation and its binding. */}}
{{- $causes = concat $causes (list "released" (printf "sum by (reason) (increase(kubevirt_scheduler_released_total{%s}[1h])) > 5" $of)) }}
{{- end }}
- alert: KubevirtSchedulerSoftened
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" $causes | nindent 4 }}
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: Many VMs only prefer the node of their share-manager ({{ `{{ $labels.cause }}{{ with $labels.reason }}, {{ . }}{{ end }}` }}).
    description: >-
      These VMs may run apart from their storage. `guard`: within an hour, the node guard refused the pin for more than {{ mulf 100 $softened }} % of the VMs
      that started; the label `reason` of kubevirt_scheduler_decisions_total has the cause, often full nodes.
      {{- if $releases }} `released`: the webhook released more than five pinned VMs within an hour, and each starts about a minute late.{{ end }}
- alert: KubevirtSchedulerVMsUnserved
  # Each replica exports the whole fleet, hence `max`. A replacement takes seconds.
  expr: >-
    sum(max by (opted_in) (kubevirt_scheduler_vms{ {{- $of -}} ,state="Unserved"})) > 0
  for: 5m
  labels:
    severity: critical
  annotations:
    summary: "{{ `{{ $value }}` }} running VMs have no share-manager for their disk, so their I/O hangs."
    description: >-
      Usually, the scheduler finds no node for the share-manager: its nodes are cordoned, full, or excluded by the StorageClass. `kubevirt-scheduler doctor`
      names the VMs, and says what the scheduler reports.
- alert: KubevirtSchedulerVMsApart
  # Each replica exports the whole fleet, hence `max`.
  expr: >-
    max(kubevirt_scheduler_vms{ {{- $of -}} ,state="Apart",opted_in="true"})
    / (max(kubevirt_scheduler_vms{ {{- $of -}} ,state="Apart",opted_in="true"}) + max(kubevirt_scheduler_vms{ {{- $of -}} ,state="Together",opted_in="true"})) > {{ .Values.prometheusRule.thresholds.apart }}
  for: 6h
  labels:
    severity: info
  annotations:
    summary: "{{ `{{ $value | humanizePercentage }}` }} of the opted-in VMs run apart from their share-manager."
    description: Each disk access of these VMs crosses the network. Live migrations separate VMs from their storage; a restart places them together again.
{{- /* Only the leader reports pins. It releases a pin some seconds after the scheduler failed. A leader that has crashed is replaced within a minute. */}}
{{- $stuck := printf "max by (reason) (kubevirt_scheduler_pending_pins{%s}) > 0" $of }}
{{- $leaderless := printf "max(kubevirt_scheduler_release_leader{%s}) == 0" $of }}
- alert: KubevirtSchedulerPendingPins
  expr: |-
    {{- include "kubevirt-scheduler.alerts.causes" (list "stuck" $stuck "no-leader" $leaderless) | nindent 4 }}
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: Pinned VMs may stay Pending ({{ `{{ $labels.cause }}{{ with $labels.reason }}, {{ . }}{{ end }}` }}).
    description: >-
      `stuck`: pinned VMs can't be scheduled, and the webhook may not release them, so they stay Pending until you act. List their pods with
      `kubectl get pods -A -l kubevirt.io=virt-launcher --field-selector status.phase=Pending`. Then stop and start each VM with virtctl, or
      repair its node. `no-leader`: no replica reports {{ if $releases }}or releases {{ end }}such pins; the replicas' logs show why they can't
      update Lease {{ .Release.Namespace }}/{{ include "kubevirt-scheduler.leaseName" . }}.
{{- if .Values.recolocate.schedule }}
{{- $job := printf "namespace=%q,job_name=~\"%s-recolocate-[0-9]+\"" .Release.Namespace (include "kubevirt-scheduler.fullname" .) }}
{{- $cronjob := printf "namespace=%q,cronjob=\"%s-recolocate\"" .Release.Namespace (include "kubevirt-scheduler.fullname" .) }}
- alert: KubevirtSchedulerRecolocateFailed
  # kube-state-metrics exports these, also of a failed Job that is older than the last success. The deadline ends a maintenance window, not a
  # failed run: https://github.com/kubernetes/kube-state-metrics/blob/01ec07a8/internal/store/job.go
  expr: |-
    max(kube_job_status_start_time{ {{- $job -}} } and on (namespace, job_name) kube_job_status_failed{ {{- $job -}} ,reason!="DeadlineExceeded"} > 0)
    > (max(kube_cronjob_status_last_successful_time{ {{- $cronjob -}} }) or vector(0))
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: The last nightly run of recolocate stopped.
    description: A live migration failed, or the run couldn't read the cluster. It created no further migration, and VMs may run apart from their storage. The log of the Job's pod has the cause.
{{- end }}
{{- end }}
