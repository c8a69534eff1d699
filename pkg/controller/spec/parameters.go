package spec

import (
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/scheduler"
)

// Parameter describes a StorageClass parameter. docs/reference/storageclass.md is generated from
// Parameters.
type Parameter struct {
	Key string
	// All but Key are Markdown. Default may be empty.
	Allowed, Default, Meaning string
}

// Parameters returns all allowed parameters of a StorageClass. The settings of file systems, with
// the prefix names.ParamMkfsPrefix, come last, sorted.
func Parameters() []Parameter {
	policies := make([]string, len(scheduler.Policies))
	for i, p := range scheduler.Policies {
		policies[i] = string(p)
	}
	all := []Parameter{
		{names.ParamDeviceClass, "a device class", "each node's default class",
			"Where volumes are made. Nodes without the class offer nothing."},
		{names.ParamOnNodeLoss, inCode(names.NodeLossKeep, names.NodeLossRecreate), names.NodeLossKeep,
			"What becomes of a claim [whose node is lost](../how-to/replace-nodes.md). `recreate` deletes it, so that a StatefulSet makes it again elsewhere."},
		{names.ParamPodVolumes, inCode(names.PodVolumesPinned, names.PodVolumesMovable), names.PodVolumesPinned,
			"Whether generic ephemeral volumes keep their node: `movable` ones let [an autoscaler remove it](../how-to/autoscaling.md#let-pods-with-ephemeral-volumes-move). " +
				"`WaitForFirstConsumer` and `Delete` only."},
		{names.ParamPlacement, inCode(policies...), policies[0],
			"Which node is preferred, with `volumeBindingMode: Immediate` or [carve-scheduler](../how-to/scheduler.md)."},
		{names.ParamClaims, inCode(names.ClaimsEphemeral, names.ClaimsAny), names.ClaimsAny + "; with the profile `scratch` " + names.ClaimsEphemeral,
			"Which claims get volumes: [generic ephemeral volumes](../how-to/filesystems.md#a-class-for-ephemeral-volumes-only), or any."},
		{names.ParamEncryption, inCode(names.EncryptionEphemeral, names.EncryptionLUKS), "not encrypted",
			"How volumes are [encrypted](../how-to/encryption.md)."},
		{names.ParamEncryptionDiscards, inCode("true", "false"), "false",
			"Lets [discards](../how-to/encryption.md#discards) of encrypted volumes through to the disk or thin pool."},
		{names.ParamStageSecretName, "a name, or a template with `${pvc.name}`, `${pvc.namespace}`, `${pv.name}`, `${pvc.annotations['KEY']}`", "",
			"The Secret with the key. Required with `encryption: luks`, refused otherwise."},
		{names.ParamStageSecretNamespace, "a namespace, or a template with `${pvc.namespace}`, `${pv.name}`", "",
			"The namespace of that Secret."},
		{names.ParamFSType, inCode(typeWords()...), string(filesystem.Ext4), "The file system."},
		{names.ParamProfile, inCode(string(filesystem.Scratch)), "data survives a crash",
			"`scratch`: fast, and [empty after a crash of the node](../how-to/filesystems.md#scratch-fast-and-empty-after-a-crash). ext4 only."},
	}
	all = append(all, ioLimitParameters()...)
	settings := map[string][]string{}
	for _, t := range filesystem.Types() {
		for name, allowed := range filesystem.DescribeSettings(t) {
			settings[name] = append(settings[name], string(t)+": "+allowed)
		}
	}
	for name, allowed := range settings {
		slices.Sort(allowed)
		all = append(all, Parameter{names.ParamMkfsPrefix + name, strings.Join(allowed, "; "), "",
			filesystem.SettingMeaning(name)})
	}
	mkfs := all[len(all)-len(settings):]
	slices.SortFunc(mkfs, func(a, b Parameter) int { return strings.Compare(a.Key, b.Key) })
	return all
}

func parameterKeys() []string {
	var keys []string
	for _, p := range Parameters() {
		keys = append(keys, p.Key)
	}
	return keys
}

func typeWords() []string {
	var words []string
	for _, t := range filesystem.Types() {
		words = append(words, string(t))
	}
	return words
}

func inCode(words ...string) string { return "`" + strings.Join(words, "`, `") + "`" }
