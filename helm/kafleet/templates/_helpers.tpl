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

{{/* Name of the service account of a Deployment or Job. Takes root, role and name. */}}
{{- define "kafleet.account" -}}
{{- if .root.Values.serviceAccount.create -}}
{{ .name }}
{{- else -}}
{{ coalesce (.role.serviceAccount | default dict).name .root.Values.serviceAccount.name "default" }}
{{- end -}}
{{- end -}}

{{/* The service account itself, unless it exists. Takes what `kafleet.account` takes, component, worker, and optionally hook. */}}
{{- define "kafleet.accountObject" -}}
{{- if .root.Values.serviceAccount.create -}}
{{- $own := (.role.serviceAccount | default dict).annotations | default dict -}}
{{- $annotations := mergeOverwrite (deepCopy .root.Values.serviceAccount.annotations) $own (.hook | default dict) -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  labels: {{- include "kafleet.labels" . | nindent 4 }}
  {{- with $annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
---
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

{{/*
The Jobs that apply topics and declare types, as {jobs: [{role, types}]}: one per image of workers, because only the image of an
app can start it for its declaration, for which it has the variables of its workers. Empty types: all types of the configuration.
*/}}
{{- define "kafleet.topicsJobs" -}}
{{- $own := .Values.topics.image -}}
{{- $jobs := dict -}}
{{- $images := list -}}
{{- range (include "kafleet.workers" . | fromJson).workers -}}
{{- $image := ternary "" (include "kafleet.image" (dict "root" $ "role" .)) (not (empty $own)) -}}
{{- if not (has $image $images) -}}
{{- $images = append $images $image -}}
{{- $role := deepCopy $.Values.topics -}}
{{- if and .image (not $own) -}}
{{- $role = mergeOverwrite $role (dict "image" .image "pod" (mergeOverwrite (deepCopy .pod) $role.pod)) -}}
{{- end -}}
{{- $_ := set $jobs $image (dict "role" $role "types" list "all" false "env" list) -}}
{{- end -}}
{{- $job := get $jobs $image -}}
{{- $_ := set $job "env" (concat $job.env (default $.Values.pod.extraEnv .pod.extraEnv)) -}}
{{- $_ := set $job "types" (concat $job.types (.types | default list) | uniq) -}}
{{- $_ := set $job "all" (or $job.all (empty .types)) -}}
{{- end -}}
{{- $list := list -}}
{{- range $images -}}
{{- $job := get $jobs . -}}
{{- $types := ternary list $job.types (or $job.all (eq (len $images) 1)) -}}
{{- $env := list -}}
{{- $names := list -}}
{{- range concat ($.Values.topics.pod.extraEnv | default list) $job.env -}}
{{- if not (has .name $names) }}{{ $names = append $names .name }}{{ $env = append $env . }}{{ end -}}
{{- end -}}
{{- $_ := set $job.role "pod" (merge (dict "extraEnv" $env) $job.role.pod) -}}
{{- $list = append $list (dict "role" $job.role "types" $types) -}}
{{- end -}}
{{ dict "jobs" $list | toJson }}
{{- end -}}
