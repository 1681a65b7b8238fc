{{/* kafleet.toml as values, parsed for the ports, the drain timeout and the checks; pods get the text itself. */}}
{{- define "kafleet.config" -}}
{{- $config := fromToml .Values.config -}}
{{- with $config.Error }}{{ fail (printf "`config` is not TOML: %s" .) }}{{ end -}}
{{ $config | toJson }}
{{- end -}}

{{/* The port of a section's `listen` address. Takes root and section. */}}
{{- define "kafleet.port" -}}
{{- $config := include "kafleet.config" .root | fromJson -}}
{{- $listen := dig .section "listen" "" $config -}}
{{- if not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[0-9]{1,5}$" $listen) -}}
{{- fail (printf "`config`: [%s] listen is %q, which the kubelet cannot reach\nhint: listen = \"0.0.0.0:%s\"" .section $listen (ternary "8080" "9464" (eq .section "api"))) -}}
{{- end -}}
{{ regexFind "[0-9]+$" $listen }}
{{- end -}}

{{/* Drain timeout of workers in seconds, rounded up. */}}
{{- define "kafleet.drainSeconds" -}}
{{- $config := include "kafleet.config" . | fromJson -}}
{{- $text := dig "worker" "drain_timeout" "30s" $config | toString -}}
{{- if not (regexMatch "^[0-9]+(ms|s|m|h|d)?$" $text) -}}
{{- fail (printf "`config`: [worker] drain_timeout is %q\nhint: a number and a unit, as in \"30s\", \"2m\", \"1h\"" $text) -}}
{{- end -}}
{{- $number := regexFind "^[0-9]+" $text | int -}}
{{- $unit := regexFind "[a-z]*$" $text -}}
{{- if eq $unit "d" }}{{ mul $number 86400 }}
{{- else if eq $unit "h" }}{{ mul $number 3600 }}
{{- else if eq $unit "m" }}{{ mul $number 60 }}
{{- else if eq $unit "s" }}{{ $number }}
{{- else }}{{ div (add $number 999) 1000 }}{{ end -}}
{{- end -}}

{{/* Fails at the first literal password, secret or token. Takes node and path. */}}
{{- define "kafleet.refuseLiteralSecrets" -}}
{{- range $key, $value := .node -}}
{{- $path := printf "%s%v" $.path $key -}}
{{- if or (kindIs "map" $value) (kindIs "slice" $value) -}}
{{- include "kafleet.refuseLiteralSecrets" (dict "node" $value "path" (printf "%s." $path)) -}}
{{- else if kindIs "string" $value -}}
{{- $named := and (kindIs "string" $key) (regexMatch "(?i)(password|passphrase|secret|token|authorization|api[-_.]?key|\\.pem)$" (toString $key)) -}}
{{- $literal := not (regexMatch "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" $value) -}}
{{- if and $named $literal (ne $value "") -}}
{{- fail (printf "`config`: %s holds a secret, which must not be in a ConfigMap\nhint: write \"${VARIABLE}\" and give the variable a key under `existingSecret.keys`" $path) -}}
{{- end -}}
{{- if regexMatch "://[^/@]*:[^/@$]+@" $value -}}
{{- fail (printf "`config`: the address in %s holds a password\nhint: write it as \"${VARIABLE}\" and give the variable a key under `existingSecret.keys`" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The variables in a part of the configuration, as {variables: […]}; `$${` is literal text. Takes part. */}}
{{- define "kafleet.variables" -}}
{{- $found := list -}}
{{- range regexFindAll "\\$\\{[A-Za-z_][A-Za-z0-9_]*\\}" (.part | toJson | replace "$${" "") -1 -}}
{{- $found = append $found (regexFind "[A-Za-z_][A-Za-z0-9_]*" .) -}}
{{- end -}}
{{ dict "variables" (uniq $found) | toJson }}
{{- end -}}

{{/* Fails if `config` names a variable that is not set in the pods. */}}
{{- define "kafleet.refuseUnknownVariables" -}}
{{- $known := keys .Values.existingSecret.keys -}}
{{- range .Values.pod.extraEnv }}{{ $known = append $known .name }}{{ end -}}
{{- range (include "kafleet.variables" (dict "part" (include "kafleet.config" . | fromJson)) | fromJson).variables -}}
{{- if not (has . $known) -}}
{{- fail (printf "`config` names ${%s}, which nothing sets\nhint: add it under `existingSecret.keys` or `pod.extraEnv`" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The keys of the Secret for a role, as {VARIABLE: key}. Programs that a worker starts inherit its environment, so variables that only
`[api]` names are set in the API only, and the Redis URL with its password is not set in workers, which do not use Redis.
Takes root and component.
*/}}
{{- define "kafleet.secretKeys" -}}
{{- $keys := deepCopy .root.Values.existingSecret.keys -}}
{{- $config := include "kafleet.config" .root | fromJson -}}
{{- $elsewhere := (include "kafleet.variables" (dict "part" (omit $config "api")) | fromJson).variables -}}
{{- if ne .component "api" -}}
{{- range (include "kafleet.variables" (dict "part" (dig "api" dict $config)) | fromJson).variables -}}
{{- if not (has . $elsewhere) }}{{ $keys = omit $keys . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if has .component (list "worker" "topics") }}{{ $keys = omit $keys "KAFLEET_REDIS" }}{{ end -}}
{{ $keys | toJson }}
{{- end -}}

{{/* Checks beyond the schema: unique names, and the values that an entry's autoscaling requires. */}}
{{- define "kafleet.checkWorkers" -}}
{{- $seen := list -}}
{{- range (include "kafleet.workers" . | fromJson).workers -}}
{{- if has .name $seen }}{{ fail (printf "two entries of `workers` are named %q" .name) }}{{ end -}}
{{- $seen = append $seen .name -}}
{{- $scale := .autoscaling -}}
{{- if lt (int $scale.maxReplicas) (int $scale.minReplicas) -}}
{{- fail (printf "worker %q: maxReplicas is below minReplicas" .name) -}}
{{- end -}}
{{- if and (eq $scale.kind "hpa") (not (dig "requests" "cpu" "" .resources)) -}}
{{- fail (printf "worker %q: scaling on CPU needs a CPU request\nhint: resources.requests.cpu" .name) -}}
{{- end -}}
{{- if eq $scale.kind "keda" -}}
{{- if not .types }}{{ fail (printf "worker %q: scaling on the backlog needs `types`" .name) }}{{ end -}}
{{- if not (or $scale.backlogPerReplica .slots) }}{{ fail (printf "worker %q: scaling on the backlog needs `slots` or `autoscaling.backlogPerReplica`" .name) }}{{ end -}}
{{- if not $.Values.api.enabled }}{{ fail (printf "worker %q: scaling on the backlog needs the API\nhint: api.enabled" .name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails if the ingress leads to a path that the API does not serve. */}}
{{- define "kafleet.checkIngress" -}}
{{- $ui := dig "api" "ui" dict (include "kafleet.config" . | fromJson) -}}
{{- $path := .Values.api.ingress.path -}}
{{- $served := list "/" "/v1" (dig "base_path" "/" $ui) -}}
{{- if and .Values.api.enabled .Values.api.ingress.enabled (not (has $path $served)) -}}
{{- fail (printf "the API serves nothing at `api.ingress.path` %q\nhint: [api.ui] base_path = %q in `config` serves the web UI there; \"/\" publishes the web UI and the API" $path $path) -}}
{{- end -}}
{{- end -}}

{{/* Contents of the ConfigMap. Its keys cannot contain a slash: `schemas/a.json` is stored as `schemas.a.json` and mounted at its path. */}}
{{- define "kafleet.configData" -}}
kafleet.toml: |
  {{- .Values.config | nindent 2 }}
{{- range $path, $text := .Values.configFiles }}
{{ $path | replace "/" "." }}: |
  {{- $text | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Contents of the ConfigMap after all checks. Every template that mounts the configuration includes this. */}}
{{- define "kafleet.checkedConfigData" -}}
{{- include "kafleet.refuseLiteralSecrets" (dict "node" (include "kafleet.config" . | fromJson) "path" "") -}}
{{- if regexMatch "://[^/@]*:[^/@]+@" .Values.redis.url -}}
{{- fail "`redis.url` holds a password\nhint: set existingSecret.keys.KAFLEET_REDIS to the key of a Secret that holds the whole URL" -}}
{{- end -}}
{{- include "kafleet.refuseUnknownVariables" . -}}
{{- include "kafleet.checkWorkers" . -}}
{{- include "kafleet.checkIngress" . -}}
{{ include "kafleet.configData" . }}
{{- end -}}
