package spec

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/stagesecret"
)

func isStageSecret(key string) bool {
	return key == names.ParamStageSecretName || key == names.ParamStageSecretNamespace
}

// checkStageSecret checks a class's Secret parameters against its encryption. Kubernetes would send
// even an unused Secret to the node.
func (e Encryption) checkStageSecret(class *storagev1.StorageClass) error {
	for _, key := range []string{names.ParamStageSecretName, names.ParamStageSecretNamespace} {
		given := class.Parameters[key]
		switch {
		case e.kind != names.EncryptionLUKS && given != "":
			return &InvalidError{Field: ClassField(class, key), Given: fmt.Sprintf("%q", given),
				Allowed: fmt.Sprintf("none without %s: %s", names.ParamEncryption, names.EncryptionLUKS)}
		case e.kind == names.EncryptionLUKS && given == "":
			return &InvalidError{Field: ClassField(class, key), Given: "nothing",
				Allowed: fmt.Sprintf("with %s: %s, the Secret that has the volume's key, such as %q", names.ParamEncryption, e.kind, exampleOf[key])}
		}
	}
	return nil
}

var exampleOf = map[string]string{
	names.ParamStageSecretName: "${pvc.name}-key", names.ParamStageSecretNamespace: "${pvc.namespace}",
}

// StageSecret returns the Secret with the key for a claim's volume, nil if its class names none;
// errors are *InvalidError.
func StageSecret(class *storagev1.StorageClass, claim *v1.PersistentVolumeClaim) (*v1.SecretReference, error) {
	ref, err := stagesecret.Of(class.Parameters, claim, VolumeName(claim))
	var refused *stagesecret.Error
	if errors.As(err, &refused) {
		return nil, &InvalidError{Field: ClassField(class, refused.Parameter), Given: refused.Given, Allowed: refused.Allowed}
	}
	return ref, err
}
