package spec

import (
	"fmt"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
)

// Encryption holds a StorageClass's encryption parameters.
type Encryption struct {
	// kind is names.EncryptionEphemeral, names.EncryptionLUKS, or empty.
	kind string
	// discards reach the disk.
	discards bool
}

// HeaderBytes returns the space that a volume takes besides its usable size.
func (e Encryption) HeaderBytes() int64 {
	if e.kind == names.EncryptionLUKS {
		return luks.HeaderBytes
	}
	return 0
}

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

// suitsMount rejects a class whose mount options enable discards that its encryption blocks: the
// kernel would mount the file systems silently, and the space would never come back.
func (e Encryption) suitsMount(class *storagev1.StorageClass) error {
	option := filesystem.DiscardOption(class.MountOptions)
	if e.kind == "" || e.discards || option == "" {
		return nil
	}
	return &InvalidError{Field: fmt.Sprintf("StorageClass %s: mountOptions", class.Name),
		Given:   fmt.Sprintf("%q for encrypted volumes, which keep discards from the disk,", option),
		Allowed: fmt.Sprintf("it together with %s: \"true\", or nodiscard, or neither", names.ParamEncryptionDiscards)}
}

// suits rejects data sources, from which an encrypted volume cannot be created.
func (e Encryption) suits(source *DataSource) error {
	if e.kind == "" || source == nil {
		return nil
	}
	return &InvalidError{Field: "spec.dataSource", Given: "a source",
		Allowed: "none: volumes of a StorageClass with " + names.ParamEncryption + " begin empty"}
}
