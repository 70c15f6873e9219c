{{/* Alerts about VMs: which start unmodified, softened or not at all, and which run apart from their storage. */}}

{{- define "kubevirt-scheduler.alerts.vms" -}}
{{- $of := include "kubevirt-scheduler.alerts.of" . }}
{{- $starts := printf "kubevirt_scheduler_decisions_total{%s,subject=\"vm\",action=\"inject\",mode=\"required\"" $of }}
{{- $refused := "CacheStale|NodeNotFound|NodeNotReady|NodeCordoned|NodeTainted|NodeMismatch|VolumeMismatch|NodeFull|NodeScarce|PodAffinity|Released|StartFailed|Unjudged" }}
- alert: KubevirtSchedulerRejected
  # Only the API servers count rejections, so Prometheus must scrape them too.
  expr: sum by (name, error_type) ({{ include "kubevirt-scheduler.alerts.apiserverIncrease" "apiserver_admission_webhook_rejection_count" }}) > 0
  labels:
    severity: critical
  annotations:
    summary: The API server rejected pods because of the webhook ({{ `{{ $labels.name }}` }}, {{ `{{ $labels.error_type }}` }}).
    description: Opted-in VMs don't start. The webhook never rejects a pod, so the call failed{{ if eq .Values.webhook.failurePolicy "Fail" }} (webhook.failurePolicy is Fail){{ end }}, or the API server couldn't apply the patch.
- alert: KubevirtSchedulerMissed
  expr: sum by (name) ({{ include "kubevirt-scheduler.alerts.apiserverIncrease" "apiserver_admission_webhook_fail_open_count" }}) > 0
  labels:
    severity: warning
  annotations:
    summary: The API server created pods without the webhook ({{ `{{ $labels.name }}` }}).
    description: The webhook's response was late, or the call failed. Check that the replicas are ready, and that the API server trusts their certificate and reaches their port.
- alert: KubevirtSchedulerUndecided
  # Each replica sees the whole cluster, hence `max`. A pod counts for an hour after its creation.
  expr: max(kubevirt_scheduler_undecided_pods{ {{- $of -}} }) > 0
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: Within an hour, {{ `{{ $value }}` }} opted-in VMs started without a decision of the webhook.
    description: These VMs may run apart from their storage. `kubevirt-scheduler doctor` names them, and says whether the API server calls the webhook for the account of your KubeVirt controller.
- alert: KubevirtSchedulerSoftened
  # Five starts, so that a single VM on a quiet cluster doesn't fire the alert.
  expr: >-
    sum(increase({{ $starts }},reason=~{{ $refused | quote }}}[1h])) / sum(increase({{ $starts }},reason=~{{ printf "CoScheduled|%s" $refused | quote }}}[1h])) > 0.25
    and sum(increase({{ $starts }},reason=~{{ $refused | quote }}}[1h])) >= 5
  for: 15m
  labels:
    severity: warning
  annotations:
    summary: The node guard refused the pin for {{ `{{ $value | humanizePercentage }}` }} of the VMs that started within an hour.
    description: These VMs only prefer the node of their share-manager, so they may run apart from their storage. The metric's label `reason` has the cause; often the nodes are full.
- alert: KubevirtSchedulerVMsApart
  # Each replica exports the whole fleet, hence `max`.
  expr: >-
    max(kubevirt_scheduler_vms{ {{- $of -}} ,state="Apart",opted_in="true"})
    / (max(kubevirt_scheduler_vms{ {{- $of -}} ,state="Apart",opted_in="true"}) + max(kubevirt_scheduler_vms{ {{- $of -}} ,state="Together",opted_in="true"})) > 0.1
  for: 6h
  labels:
    severity: info
  annotations:
    summary: "{{ `{{ $value | humanizePercentage }}` }} of the opted-in VMs run apart from their share-manager."
    description: Each disk access of these VMs crosses the network. Live migrations separate VMs from their storage; a restart places them together again.
- alert: KubevirtSchedulerPendingPins
  # Only the leader reports pins. It releases a pin {{ .Values.release.after }} s after the scheduler failed, in passes of 5 s.
  expr: max by (reason) (kubevirt_scheduler_pending_pins{ {{- $of -}} }) > 0
  for: 10m
  labels:
    severity: warning
  annotations:
    summary: Pinned VMs can't be scheduled, and the webhook may not release them ({{ `{{ $labels.reason }}` }}).
    description: >-
      These VMs stay Pending until you act. List their pods with `kubectl get pods -A -l kubevirt.io=virt-launcher
      --field-selector status.phase=Pending`. Then stop and start each VM with virtctl, or repair its node.
{{- $releases := include "kubevirt-scheduler.deletesPods" . }}
{{- if $releases }}
- alert: KubevirtSchedulerReleases
  # Releases are rare: a node or share-manager must change between a pod's creation and its binding.
  expr: sum by (reason) (increase(kubevirt_scheduler_released_total{ {{- $of -}} }[1h])) > 5
  labels:
    severity: info
  annotations:
    summary: The webhook released more than five pinned VMs within an hour ({{ `{{ $labels.reason }}` }}).
    description: Each VM starts about a minute late, and may run apart from its storage. The label `reason` has the cause.
{{- end }}
- alert: KubevirtSchedulerNoReleaseLeader
  # A leader that has crashed is replaced within a minute.
  expr: max(kubevirt_scheduler_release_leader{ {{- $of -}} }) == 0
  for: 5m
  labels:
    severity: warning
  annotations:
    summary: No replica reports {{ if $releases }}or releases {{ end }}pins that can't hold.
    description: The replicas' logs show why they can't update Lease {{ .Release.Namespace }}/{{ include "kubevirt-scheduler.leaseName" . }}.
- alert: KubevirtSchedulerInternalError
  expr: sum(increase(kubevirt_scheduler_decisions_total{ {{- $of -}} ,reason="InternalError"}[15m])) > 0
  labels:
    severity: warning
  annotations:
    summary: An unexpected error occurred in the webhook, and a pod was created unchanged.
    description: The log has the traceback. Please report it.
{{- end }}
