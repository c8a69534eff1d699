package spec

import (
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// Phase is the progress of a volume. Its values are stored.
type Phase string

// Phases of volumes.
const (
	// Creating is an intent. A start undoes it, or continues a copy with recorded progress, unless
	// LVM or the volume's contents show that it may have been handed out.
	Creating Phase = "creating"
	// Ready is a usable volume.
	Ready Phase = "ready"
	// Deleting is a tombstone.
	Deleting Phase = "deleting"
	// Unfinished means that neither the journal nor LVM shows whether the volume was handed out,
	// and its contents are not found. It is kept unchanged, and not handed out.
	Unfinished Phase = "unfinished"
	// DataLost means that an encrypted volume lost its key, and is to be reformatted.
	DataLost Phase = "emptied"
)

// Record is the journal's record of a volume: the identity, which its tags have, too, and the
// progress, which only the journal has.
type Record struct {
	// ID is the volume's, and its name in LVM; Group is the name of its volume group.
	ID    string   `json:"id"`
	Group string   `json:"group"`
	Phase Phase    `json:"phase"`
	Ident Identity `json:"identity"`
	// Tagged is true of an intent whose volume has a tag until it is handed out, see TagMaking.
	// Versions before that tag wrote intents without it.
	Tagged bool `json:"tagged,omitempty"`
	// Wiped counts the bytes, from the beginning, that are durably wiped; for phase deleting.
	Wiped int64 `json:"wiped,omitempty"`
	// NotZeroed is true if something was not wiped, because the class says so or the disk refuses it.
	NotZeroed bool `json:"soiled,omitempty"`
	// Copied counts the bytes, from the beginning, that are durably copied; for phase creating.
	// Source is the source's write mark at the beginning of the copy.
	Copied int64              `json:"copied,omitempty"`
	Source blockdev.WriteMark `json:"source,omitzero"`
	// Created is the time of the request.
	Created time.Time `json:"created"`
	// Reformatted is when an encrypted volume was last reformatted, or zero.
	Reformatted time.Time `json:"emptied,omitzero"`
	// Encrypted is true once the node plugin has encrypted the volume, with names.EncryptionLUKS.
	Encrypted bool `json:"encrypted,omitempty"`
	// Provisional is true while no PersistentVolume is known to name the volume. No Pod has had it.
	// A volume is provisional only with both this and TagProvisional.
	Provisional bool `json:"provisional,omitempty"`
	// AdoptedFrom is the former name of an adopted logical volume, until the adoption is confirmed.
	AdoptedFrom string `json:"adoptedFrom,omitempty"`
}
