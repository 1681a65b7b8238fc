{{/* At most 30 characters: with a worker's name and KEDA's prefix, names must fit into the 63 characters of a label. */}}
{{- define "kafleet.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $release .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{/* Selector labels of pods, which are immutable. Takes root, component and, for workers, worker. */}}
{{- define "kafleet.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .worker }}
kafleet/worker: {{ . }}
{{- end }}
{{- end -}}

{{/*
Labels of objects. `part-of` is fixed, because ServiceMonitors take the job of their targets from it, and the alert
KafleetTargetDown matches the job. Names depend on the release and on overrides, and the name of a chart that is a
dependency on its alias.
*/}}
{{- define "kafleet.labels" -}}
{{ include "kafleet.selector" . }}
app.kubernetes.io/part-of: kafleet
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "kafleet.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (.role.image | default dict) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "kafleet.pullPolicy" -}}
{{- (mergeOverwrite (deepCopy .root.Values.image) (.role.image | default dict)).pullPolicy -}}
{{- end -}}

{{- define "kafleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "kafleet.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ default "default" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* The entries of `workers`, each merged with `workerDefaults`, as {workers: […]}. */}}
{{- define "kafleet.workers" -}}
{{- $workers := list -}}
{{- range .Values.workers -}}
{{- $workers = append $workers (mergeOverwrite (deepCopy $.Values.workerDefaults) .) -}}
{{- end -}}
{{ dict "workers" $workers | toJson }}
{{- end -}}
