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

{{/*
The part of the configuration whose variables must be set in the pods of a role: without the sections that it does not use and,
if it serves some types only, without other types and the apps that serve none of these. Takes root, component and types.
*/}}
{{- define "kafleet.usedConfig" -}}
{{- $unused := dict "worker" (list "redis" "outbox" "api" "schedules") -}}
{{- $_ := set $unused "tracker" (list "outbox" "api" "apps" "types" "schedules" "callbacks" "email") -}}
{{- $_ := set $unused "api" (list "outbox" "apps" "types" "schedules" "callbacks" "email") -}}
{{- $_ := set $unused "outbox" (list "redis" "api" "apps" "types" "schedules" "callbacks" "email") -}}
{{- $_ := set $unused "topics" (list "redis" "outbox" "api" "types" "schedules" "callbacks" "email") -}}
{{- $_ := set $unused "doctor" (list "api" "types" "schedules" "callbacks" "email") -}}
{{- $_ := set $unused "schedules" (list "kafka" "redis" "outbox" "api" "apps" "types" "ops" "callbacks" "email") -}}
{{- $used := include "kafleet.config" .root | fromJson -}}
{{- range get $unused .component }}{{ $used = omit $used . }}{{ end -}}
{{- $types := .types | default list -}}
{{- if $types -}}
{{- range $name, $_ := dig "types" dict $used -}}
{{- if not (has $name $types) }}{{ $_ := unset $used.types $name }}{{ end -}}
{{- end -}}
{{- range $name, $app := dig "apps" dict $used -}}
{{- $serves := not (hasKey $app "types") -}}
{{- range $app.types }}{{ if has . $types }}{{ $serves = true }}{{ end }}{{ end -}}
{{- if not $serves }}{{ $_ := unset $used.apps $name }}{{ end -}}
{{- end -}}
{{- end -}}
{{ $used | toJson }}
{{- end -}}

{{/* Fails if the pods of a role lack a variable that their part of `config` names. Takes root, component, worker, types and pod. */}}
{{- define "kafleet.refuseUnknownVariables" -}}
{{- $known := keys (include "kafleet.secretKeys" . | fromJson) -}}
{{- range .pod.extraEnv }}{{ $known = append $known .name }}{{ end -}}
{{- $pods := printf "the %s" .component -}}
{{- with .worker }}{{ $pods = printf "the worker %q" . }}{{ end -}}
{{- range (include "kafleet.variables" (dict "part" (include "kafleet.usedConfig" . | fromJson)) | fromJson).variables -}}
{{- if not (has . $known) -}}
{{- fail (printf "`config` names ${%s}, which nothing sets in the pods of %s\nhint: add it under `existingSecret.keys`, `pod.extraEnv`, or `pod.extraEnv` of the role" . $pods) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The keys of the Secret for a role, as {VARIABLE: key}: a variable that `config` names is set in the pods that use its section, and
the Redis URL with its password only where Redis is used. Takes root, component and types.
*/}}
{{- define "kafleet.secretKeys" -}}
{{- $keys := deepCopy .root.Values.existingSecret.keys -}}
{{- $used := (include "kafleet.variables" (dict "part" (include "kafleet.usedConfig" . | fromJson)) | fromJson).variables -}}
{{- range (include "kafleet.variables" (dict "part" (include "kafleet.config" .root | fromJson)) | fromJson).variables -}}
{{- if not (has . $used) }}{{ $keys = omit $keys . }}{{ end -}}
{{- end -}}
{{- if has .component (list "worker" "outbox" "topics" "schedules") }}{{ $keys = omit $keys "KAFLEET_REDIS" }}{{ end -}}
{{- if not (has .component (list "outbox" "topics" "doctor")) }}{{ $keys = omit $keys "KAFLEET_POSTGRES" }}{{ end -}}
{{ $keys | toJson }}
{{- end -}}

{{/*
Hash of the configuration without what running roles take over when its file changes (docs/configuration.md#reloading): a change of
these keys replaces no pods.
*/}}
{{- define "kafleet.restartHash" -}}
{{- $live := .Files.Get "files/live-settings.json" | fromJsonArray -}}
{{- $config := include "kafleet.config" . | fromJson -}}
{{- range $name, $type := dig "types" dict $config -}}
{{- range $live }}{{ $_ := unset $type . }}{{ end -}}
{{- end -}}
{{- with $config.log }}{{ $_ := unset . "filter" }}{{ end -}}
{{ dict "config" $config "files" .Values.configFiles | toJson | sha256sum }}
{{- end -}}

{{/* Fails if the certificates for Redis are mounted, but not used, or used, but not mounted. */}}
{{- define "kafleet.checkRedisTls" -}}
{{- $redis := dig "redis" dict (include "kafleet.config" . | fromJson) -}}
{{- $mounted := .Values.redis.tlsSecret -}}
{{- $named := false -}}
{{- range list "ca" "certificate" "key" -}}
{{- if hasPrefix "/etc/redis-tls/" (get $redis . | toString) }}{{ $named = true }}{{ end -}}
{{- end -}}
{{- if and $mounted (not $named) -}}
{{- fail "`redis.tlsSecret` is set, but `config` uses no file of it\nhint: [redis] ca = \"/etc/redis-tls/ca.crt\"" -}}
{{- end -}}
{{- if and $named (not $mounted) -}}
{{- fail "`config` names certificates in /etc/redis-tls, which is not mounted\nhint: set `redis.tlsSecret`" -}}
{{- end -}}
{{- end -}}

{{/* Fails if an autoscaling by CPU, or its limits, cannot work. Takes name and role. */}}
{{- define "kafleet.checkScale" -}}
{{- $scale := .role.autoscaling -}}
{{- if lt (int $scale.maxReplicas) (int $scale.minReplicas) -}}
{{- fail (printf "%s: maxReplicas is below minReplicas" .name) -}}
{{- end -}}
{{- if and (eq $scale.kind "hpa") (not (dig "requests" "cpu" "" .role.resources)) -}}
{{- fail (printf "%s: scaling on CPU needs a CPU request\nhint: resources.requests.cpu" .name) -}}
{{- end -}}
{{- end -}}

{{/* Checks beyond the schema: unique names, and the values that autoscaling and schedules require. */}}
{{- define "kafleet.checkWorkers" -}}
{{- $seen := list -}}
{{- range (include "kafleet.workers" . | fromJson).workers -}}
{{- if has .name $seen }}{{ fail (printf "two entries of `workers` are named %q" .name) }}{{ end -}}
{{- $seen = append $seen .name -}}
{{- $scale := .autoscaling -}}
{{- include "kafleet.checkScale" (dict "name" (printf "worker %q" .name) "role" .) -}}
{{- if eq $scale.kind "keda" -}}
{{- if not .types }}{{ fail (printf "worker %q: scaling on the backlog needs `types`" .name) }}{{ end -}}
{{- if not (or $scale.backlogPerReplica .slots) }}{{ fail (printf "worker %q: scaling on the backlog needs `slots` or `autoscaling.backlogPerReplica`" .name) }}{{ end -}}
{{- if not $.Values.api.enabled }}{{ fail (printf "worker %q: scaling on the backlog needs the API\nhint: api.enabled" .name) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kafleet.checkOtherRoles" -}}
{{- include "kafleet.checkScale" (dict "name" "tracker" "role" .Values.tracker) -}}
{{- include "kafleet.checkScale" (dict "name" "api" "role" .Values.api) -}}
{{- if and .Values.outbox.enabled (not (hasKey (include "kafleet.config" . | fromJson) "outbox")) -}}
{{- fail "`outbox.enabled` is set, but `config` has no section `[outbox]`\nhint: [outbox] postgres = \"${KAFLEET_POSTGRES}\", with existingSecret.keys.KAFLEET_POSTGRES" -}}
{{- end -}}
{{- if and .Values.schedules.enabled (not .Values.api.enabled) -}}
{{- fail "schedules are applied over the API\nhint: api.enabled" -}}
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
{{- include "kafleet.checkWorkers" . -}}
{{- include "kafleet.checkOtherRoles" . -}}
{{- include "kafleet.checkRedisTls" . -}}
{{- include "kafleet.checkIngress" . -}}
{{ include "kafleet.configData" . }}
{{- end -}}
