{{/* The common parts of the alerts: the selector of the replicas' series, several causes in one expression, and the increase of an API server's counter. */}}

{{- define "kubevirt-scheduler.alerts.of" -}}
{{ printf "namespace=%q,service=%q" .Release.Namespace (include "kubevirt-scheduler.fullname" .) }}
{{- end }}

{{/* One expression whose series have the label `cause`. Takes a list of causes and their expressions: (list "cause" "expression" ...). */}}
{{- define "kubevirt-scheduler.alerts.causes" -}}
{{- range $index, $pair := chunk 2 . }}
{{- if $index }}
or {{ end -}}
label_replace({{ last $pair }}, "cause", {{ first $pair | quote }}, "", "")
{{- end }}
{{- end }}

{{/* An API server exports such a counter only after the first increment, which `increase` can't see. So if the API server was scraped ten minutes
     ago, a new series counts with its value. */}}
{{- define "kubevirt-scheduler.alerts.apiserverIncrease" -}}
{{- $series := printf "%s{name=~\"(vms|share-managers)[.]kubevirt-scheduler[.]io\"}" . -}}
(increase({{ $series }}[10m]) > 0) or ({{ $series }} unless {{ $series }} offset 10m and on (job, instance) (up offset 10m == 1))
{{- end }}
