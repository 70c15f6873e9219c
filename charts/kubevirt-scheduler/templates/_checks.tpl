{{/* Checks of one value against another, which a schema can't express. Each stops the installation and says what is wrong, where, and what to do. */}}

{{- define "kubevirt-scheduler.checks" -}}
{{- if and (ne .Values.test.namespace "default") (not (include "kubevirt-scheduler.testable" .)) }}
  {{- fail (printf "test.namespace: the webhook ignores namespace %q, so `helm test` would fail. Name another namespace, such as default." .Values.test.namespace) }}
{{- end }}
{{- range .Values.extraEnv }}
  {{- if hasPrefix "CO_SCHEDULE_" .name }}
    {{- fail (printf "extraEnv: the chart already sets %s. Set it under `settings` instead." .name) }}
  {{- end }}
{{- end }}
{{- include "kubevirt-scheduler.checks.drains" . }}
{{- if and .Values.recolocate.schedule (not (regexMatch "(^| )(-A|-n|--all-namespaces|--namespace)" (join " " .Values.recolocate.args))) }}
  {{- fail "recolocate.args: without a namespace, the run would look only at namespace default. Add --all-namespaces or --namespace=NAME." }}
{{- end }}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
  {{- fail "serviceAccount: with create=false, serviceAccount.name must be set. Name an account that exists." }}
{{- end }}
{{- if eq (int .Values.containerPorts.https) (int .Values.containerPorts.http) }}
  {{- fail (printf "containerPorts: https and http are both %v. Choose two ports." .Values.containerPorts.http) }}
{{- end }}
{{- if and .Values.hostNetwork (has 10250 (list (int .Values.containerPorts.https) (int .Values.containerPorts.http))) }}
  {{- fail "containerPorts: with hostNetwork, 10250 is the kubelet's port. Choose another port, such as 8443." }}
{{- end }}
{{- include "kubevirt-scheduler.checks.networkPolicy" . }}
{{- include "kubevirt-scheduler.checks.labels" . }}
{{- include "kubevirt-scheduler.checks.images" . }}
{{- include "kubevirt-scheduler.checks.names" . }}
{{- include "kubevirt-scheduler.checks.certificates" . }}
{{- if and .Values.tls.clientCA.configMap .Values.tls.clientCA.secret }}
  {{- fail "tls.clientCA: configMap and secret are both set, and the client CA comes from one of them. Empty the other." }}
{{- end }}
{{- end }}

{{/* Kubernetes rounds a percentage up. */}}
{{- define "kubevirt-scheduler.checks.drains" -}}
{{- with .Values.podDisruptionBudget.minAvailable | toString }}
  {{- $left := hasSuffix "%" . | ternary (mulf $.Values.replicas (divf (trimSuffix "%" . | float64) 100) | ceil) (trimSuffix "%" . | float64) }}
  {{- if ge $left (float64 $.Values.replicas) }}
    {{- fail (printf "podDisruptionBudget.minAvailable: %s of %v replicas leaves none to evict, and a drain would never end. Lower it, or raise replicas." . $.Values.replicas) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.checks.networkPolicy" -}}
{{- with .Values.networkPolicy }}
  {{- if and .enabled (not .apiServers) }}
    {{- fail "networkPolicy.apiServers: without the addresses of the API servers, no client could call the webhook. Set their CIDRs, such as 192.0.2.0/28, or set networkPolicy.enabled=false." }}
  {{- end }}
  {{- if and .egress.enabled (not .enabled) }}
    {{- fail "networkPolicy.egress: it is part of the NetworkPolicy, which is off. Set networkPolicy.enabled=true as well." }}
  {{- end }}
  {{- if and $.Values.hostNetwork .enabled }}
    {{- fail "networkPolicy: with hostNetwork, the replicas have the addresses of their nodes, to which no NetworkPolicy applies. Set networkPolicy.enabled=false, and protect the ports with the nodes' firewall." }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Other values for these labels would break the selectors. */}}
{{- define "kubevirt-scheduler.checks.labels" -}}
{{- $ours := include "kubevirt-scheduler.selectorLabels" (dict "root" . "component" "webhook") | fromYaml -}}
{{- range $where := list "commonLabels" "podLabels" }}
  {{- range $key, $_ := default (dict) (index $.Values $where) }}
    {{- if hasKey $ours $key }}
      {{- fail (printf "%s: the chart sets %s, and its selectors use it. Choose another key." $where $key) }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The chart adds the tag and the registry. With two of them, no node can pull the image. */}}
{{- define "kubevirt-scheduler.checks.images" -}}
{{- range $where, $image := dict "image" .Values.image }}
  {{- $repository := default "" $image.repository }}
  {{- if contains "://" $repository }}
    {{- fail (printf "%s.repository: %q has a scheme, and the name of an image has none. Remove everything up to `//`." $where $repository) }}
  {{- end }}
  {{- if regexMatch "[:@][^/]*$" $repository }}
    {{- fail (printf "%s.repository: %q ends in a tag or a digest. Remove it there, and set %s.tag." $where $repository $where) }}
  {{- end }}
  {{- $registry := default $image.registry (default (dict) $.Values.global).imageRegistry }}
  {{- if and $registry (regexMatch "^([^/]*[.:][^/]*|localhost)/" $repository) }}
    {{- fail (printf "%s.repository: %q names a registry, and so does global.imageRegistry or %s.registry: %q. Remove it from the repository." $where $repository $where $registry) }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The program refuses this map too, but only at its start. Here, the old pods continue unchanged. */}}
{{- define "kubevirt-scheduler.checks.names" -}}
{{- $full := include "kubevirt-scheduler.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) }}
  {{- fail (printf "the release's name: the objects would be named %s, and the name of a Service starts with a letter and has no dot. Set fullnameOverride." $full) }}
{{- end }}
{{- $names := include "kubevirt-scheduler.schedulerNames" . | fromJson -}}
{{- range $name, $target := $names }}
  {{- if ne (get $names $target | default $target) $target }}
    {{- fail (printf "settings.schedulerNames: %q maps to %q, which is mapped itself. Map %q to the final name: %q." $name $target $name (get $names $target)) }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "kubevirt-scheduler.checks.certificates" -}}
{{- $own := printf "%s-tls" (include "kubevirt-scheduler.fullname" .) -}}
{{- with .Values.certificates }}
  {{- if eq .secretName $own }}
    {{- fail (printf "certificates.secretName: %s belongs to source=self, and Helm deletes it when the source changes. Copy its content into a Secret with another name." $own) }}
  {{- end }}
  {{- if and (eq .source "provided") (not .secretName) }}
    {{- fail "certificates.secretName: source=provided needs a Secret. Name the one that holds tls.crt, tls.key and ca.crt." }}
  {{- end }}
  {{- if and (ne .source "provided") .secretName }}
    {{- fail (printf "certificates.secretName: only source=provided uses it, and source is %s. Change one of the two." .source) }}
  {{- end }}
  {{- if and (ne .source "cert-manager") .issuerRef.name }}
    {{- fail (printf "certificates.issuerRef: only source=cert-manager uses it, and source is %s. Change one of the two." .source) }}
  {{- end }}
{{- end }}
{{- end }}
