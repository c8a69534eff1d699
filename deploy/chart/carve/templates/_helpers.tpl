{{/* The image with its tag, or its digest. */}}
{{- define "carve.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The image of carve-scheduler for the cluster's version of Kubernetes, unless a value names another one. */}}
{{- define "carve.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{- $minor := regexFind "^v?[0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version | trimPrefix "v" -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else if $image.tag -}}
{{ $image.repository }}:{{ $image.tag }}
{{- else if has $minor (list "1.35" "1.36" "1.37") -}}
{{ $image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}-k8s{{ $minor }}
{{- else -}}
{{ fail (printf "scheduler.enabled: carve-scheduler supports Kubernetes 1.35, 1.36 and 1.37; the cluster has %s (helm template: give its version with --kube-version). Set scheduler.enabled to false, or scheduler.image.tag to an image that supports this version." .Capabilities.KubeVersion.Version) }}
{{- end -}}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "carve.labels" -}}
app.kubernetes.io/part-of: carve
{{- end -}}

{{/*
The objects of a file that kustomize reads, too, as they are there, but in the release's
namespace and with the labels. Arguments: root, path below files/; further labels and another
namespace, if any.
*/}}
{{- define "carve.file" -}}
{{- $root := .root -}}
{{- $clusterWide := list "CSIDriver" "ClusterRole" "ClusterRoleBinding" "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding" "MutatingAdmissionPolicy" "MutatingAdmissionPolicyBinding" "SecurityContextConstraints" -}}
{{- $text := $root.Files.Get (printf "files/%s" .path) | required (printf "the chart lacks files/%s" .path) -}}
{{- range regexSplit "(?m)^---$" ($text | replace "carve-system" $root.Release.Namespace) -1 }}
{{- $object := fromYaml . -}}
{{- if hasKey $object "Error" }}{{ fail (printf "files/%s: %s" $.path $object.Error) }}{{ end -}}
{{- if not (has $object.kind $clusterWide) }}{{ $_ := set $object.metadata "namespace" ($.namespace | default $root.Release.Namespace) }}{{ end -}}
{{- $_ := set $object.metadata "labels" (merge (include "carve.labels" $root | fromYaml) ($.labels | default dict) ($object.metadata.labels | default dict)) }}
---
{{ toYaml $object }}
{{- end }}
{{- end -}}
