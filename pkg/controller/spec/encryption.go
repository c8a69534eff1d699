package spec

import (
	"fmt"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
)

// Encryption is what a StorageClass says about it.
type Encryption struct {
	// kind is names.EncryptionEphemeral, names.EncryptionLUKS, or empty.
	kind string
	// discards go through to the disk.
	discards bool
}

// HeaderBytes is what a volume takes besides what its user gets.
func (e Encryption) HeaderBytes() int64 {
	if e.kind == names.EncryptionLUKS {
		return luks.HeaderBytes
	}
	return 0
}

// parseEncryption reads the StorageClass parameters about encryption; errors are
// *InvalidError.
func parseEncryption(class *storagev1.StorageClass) (Encryption, error) {
	var out Encryption
	switch kind := class.Parameters[names.ParamEncryption]; kind {
	case "", names.EncryptionEphemeral, names.EncryptionLUKS:
		out.kind = kind
	default:
		return out, &InvalidError{Field: ClassField(class, names.ParamEncryption), Given: fmt.Sprintf("%q", kind), Allowed: names.EncryptionEphemeral + ", " + names.EncryptionLUKS}
	}
	switch discards := class.Parameters[names.ParamEncryptionDiscards]; discards {
	case "", "false":
	case "true":
		out.discards = true
	default:
		return out, &InvalidError{Field: ClassField(class, names.ParamEncryptionDiscards), Given: fmt.Sprintf("%q", discards), Allowed: "true, false"}
	}
	if out.discards && out.kind == "" {
		return out, &InvalidError{Field: ClassField(class, names.ParamEncryptionDiscards), Given: `"true"`,
			Allowed: "false, or unset, where " + names.ParamEncryption + " is not set"}
	}
	return out, nil
}

// suitsMount refuses a class whose file systems send discards that its encryption
// keeps back: the kernel would mount them and say nothing, and the space that
// the option is there for would never come back. Errors are *InvalidError.
func (e Encryption) suitsMount(class *storagev1.StorageClass) error {
	option := filesystem.DiscardOption(class.MountOptions)
	if e.kind == "" || e.discards || option == "" {
		return nil
	}
	return &InvalidError{Field: fmt.Sprintf("StorageClass %s: mountOptions", class.Name),
		Given:   fmt.Sprintf("%q for encrypted volumes, which keep discards from the disk,", option),
		Allowed: fmt.Sprintf("it together with %s: \"true\", or nodiscard, or neither", names.ParamEncryptionDiscards)}
}

// suits refuses what an encrypted volume cannot be made of.
func (e Encryption) suits(source *DataSource) error {
	if e.kind == "" || source == nil {
		return nil
	}
	return &InvalidError{Field: "spec.dataSource", Given: "a source",
		Allowed: "none: volumes of a StorageClass with " + names.ParamEncryption + " begin empty"}
}
