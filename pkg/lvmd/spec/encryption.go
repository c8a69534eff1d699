package spec

import (
	"slices"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
)

func (i *Identity) parseEncryption(r *lvmdv1.CreateVolumeRequest) error {
	i.Encryption, i.Discards = r.GetEncryption(), r.GetEncryptionDiscards()
	switch {
	case i.Encryption != "" && i.Encryption != names.EncryptionEphemeral && i.Encryption != names.EncryptionLUKS:
		return apierror.InvalidField("encryption", "%q is not known; allowed are %s, %s, or nothing", i.Encryption, names.EncryptionEphemeral, names.EncryptionLUKS)
	case i.Encryption == "" && i.Discards:
		return apierror.InvalidField("encryption_discards", "it is set for a volume that is not encrypted")
	case i.Encryption != "" && i.Source != "":
		return apierror.InvalidField("encryption", "%q for a volume that is made of another one; encrypted volumes begin empty", i.Encryption)
	}
	return nil
}

// CheckMapping rejects encryption where files are mapped directly into memory, past any layer that
// could encrypt.
func (i Identity) CheckMapping() error {
	if i.Encryption != "" && i.DAX {
		return apierror.InvalidField("encryption", "%q in device class %q, whose files are mapped directly into memory and cannot be encrypted; use another class, or mode BLOCK",
			i.Encryption, i.Class)
	}
	return nil
}

// IsLUKS reports whether the volume's user encrypts it.
func (i Identity) IsLUKS() bool { return i.Encryption == names.EncryptionLUKS }

// HeaderBytes is the part of the volume that its user cannot use.
func (i Identity) HeaderBytes() int64 {
	if i.IsLUKS() {
		return luks.HeaderBytes
	}
	return 0
}

func (i Identity) checkLUKS() error {
	if i.IsLUKS() && i.Profile != filesystem.Usual {
		return apierror.InvalidField("profile", "%q with encryption %s; what outlives a restart of the machine is not for that profile", i.Profile, i.Encryption)
	}
	return nil
}

// AreEncrypted reports whether tags mark a volume that lvmd encrypts.
func AreEncrypted(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return strings.HasPrefix(t, tagCrypt+names.EncryptionEphemeral) })
}
