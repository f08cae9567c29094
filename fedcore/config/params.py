"""Read and combine the settings in params.yaml, studies/, claims/ and on the command line."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from os.path import isfile
from pathlib import Path
from shlex import quote
from typing import Any

from fedcore.builders import RENAMED, suggestion
from fedcore.config.files import parse_value, read_mapping
from fedcore.config.sections import REQUIRED, SHARED, allowed_keys, net_keys
from fedcore.errors import InputError
from fedcore.methods import METHODS

CLAIMED = ("valid", "ceiling", "converged", "claims")
"""The keys of a study that claims/ may set."""

COMMAND = ("study", "studies", "size", "seed", "seeds", "method")
"""The words of a command that are no sections."""

MANY = 3
"""The most keys of sections below that a hint names."""


def read(folder: Path = Path()) -> dict[str, Any]:
    """Return the sections of params.yaml, and all studies, with their claims, as section `studies`.

    Raises InputError for a file that is missing or not YAML, and for an unknown section, study or claim.
    """
    path = folder / "params.yaml"
    params = read_mapping(path, "sections")
    allowed = (*REQUIRED, SHARED, *METHODS)
    for name, section in params.items():
        if name not in allowed:
            known = {key: values for key, values in params.items() if key in allowed}
            raise InputError(f"{path}: {name}: no such section{_hint(str(name), known, (), {})}")
        if not isinstance(section, dict):
            raise InputError(f"{path}: {name} = {section!r}: must be a section; one without keys is {{}}")
    for name in REQUIRED:
        if name not in params:
            raise InputError(f"{name}: the section is missing in {path}")
    studies = _read_entries(folder / "studies")
    for name, claims in _read_entries(folder / "claims").items():
        if name not in studies:
            raise InputError(f"claims: no such study: {name!r}{suggestion(name, studies)}")
        if isinstance(studies[name], dict):
            studies[name] = {**studies[name], **_claims_and_gates(name, claims)}
    return {**params, "studies": studies}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse key=value arguments of a command; values are YAML."""
    settings: dict[str, Any] = {}
    for number, argument in enumerate(arguments):
        key, equals, text = map(str.strip, argument.partition("="))
        if not equals or not key:
            names = {"study": read()["studies"], "method": METHODS} if not equals else {}
            meant = [f"{kind}={argument}" for kind, known in names.items() if argument in known]
            meant += [f"data.path={argument}"] * isfile(argument)
            words = re.sub(" *([=,]) *", r"\1", " ".join(arguments)).split()
            tight = [word for word in words if word not in arguments and argument in word.split("=")]
            example, blanks = (*tight, *meant, "training.lr=0.1")[0], " without blanks" * bool(tight)
            whole = f"{arguments[number - 1]} {argument}" if number and not tight and not meant else ""
            quoted = f"; a value with blanks in quotes: {whole!r}" * bool(whole)
            raise InputError(f"{argument!r}: must be key=value{blanks}, e.g. {example}{quoted}")
        values = [text for name, _, text in (word.partition("=") for word in arguments) if name.strip() == key]
        if len({*values}) > 1:
            options = all(text[:1] != "{" and text[-1:] == "}" for text in values)  # bash divides {a:{b:1},b:{a:1}}
            whole = _quoted(key, [f"{{{', '.join(values)}}}"] * options)
            whole = whole or ", with its braces in quotes" * any("{" in text for text in values)
            raise InputError(f"{key}: typed {len(values)} times, {' and '.join(values)}; type one value{whole}")
        try:
            settings[key] = parse_value(key, text)
        except InputError as refused:
            ends = range(number + 2, len(arguments) + 1) if text[:1] in ("[", "{") else ()
            whole = _quoted(key, (" ".join(arguments[number:end]).partition("=")[2].strip() for end in ends))
            raise InputError(f"{key} = {text!r}: not a YAML value; type it{whole}") if whole else refused from None
    return settings


def _quoted(key: str, texts: Iterable[str]) -> str:
    """Return what to type for the first text that is a value, which a shell has divided; "" if none is."""
    for text in texts:
        with suppress(InputError):
            parse_value(key, text)
            return f" in quotes: {quote(f'{key}={text}')}"
    return ""


def change(
    params: Mapping[str, Any], changes: Mapping[str, Any], custom: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return params with dotted keys set. Raises InputError for a key that nothing takes.

    custom: the user's own methods, name -> "package.module:function". A setting of all methods (`methods.rounds`,
    `training.lr`) replaces the same setting in the methods' sections, so that the later change wins.
    """
    result = dict(params)
    own = {
        section: ":" in str(changes.get(f"{section}.name", params.get(section, {}).get("name")))
        for section in ("data", "net")
    }
    of_all = (SHARED, "training")
    for key in sorted(changes, key=lambda key: key.split(".")[0] not in of_all):
        section, *below = key.split(".")
        if section in of_all:
            names = below[:1] or (changes[key] if isinstance(changes[key], Mapping) else ())
            for method in {*METHODS, *(custom or {})} & {*result}:
                result[method] = _without(result[method], section, names)
        if own.get(section) and len(below) == 1:  # a function of one's own says what it takes
            result[section] = {**result[section], below[0]: changes[key]}
        else:
            result = _set(result, (), key, changes[key], custom or {})
    return result


def _without(method: Mapping[str, Any], section: str, names: Collection[str]) -> dict[str, Any]:
    """Return a method's section without what a setting of all methods replaces."""
    if section == SHARED:
        return {k: v for k, v in method.items() if k not in names}
    return {k: _without(v, SHARED, names) if k == section and isinstance(v, Mapping) else v for k, v in method.items()}


def _set(
    values: Mapping[str, Any], above: tuple[str, ...], key: str, value: Any, custom: Mapping[str, str]
) -> dict[str, Any]:
    """Return a section with one value changed. above: the names of the sections that contain it."""
    name, *below = key.split(".")[len(above) :]
    allowed = allowed_keys(above, custom)
    if name not in values and name not in allowed:
        raise InputError(f"{key}: no such key{_hint(name, values, above, custom)}")
    section = values.get(name, {} if allowed_keys((*above, name), custom) else None)
    if below:
        if not isinstance(section, Mapping):
            raise InputError(f"{key}: {name} has no keys below it")
        return {**values, name: _set(section, (*above, name), key, value, custom)}
    if isinstance(section, Mapping) and not isinstance(value, Mapping):
        keys = dict.fromkeys([*section, *allowed_keys((*above, name), custom)])
        raise InputError(f"{key} = {value!r}: is a section, set a key below it: {', '.join(keys)}")
    return {**values, name: value}


def _hint(name: str, values: Mapping[str, Any], above: tuple[str, ...], custom: Mapping[str, str]) -> str:
    """Return a hint for an unknown key of a section: the key itself in a section below, or else the closest one here.

    A key that is nowhere near is looked for in other sections. Of a setting that many methods have it is the one of all
    of them, or where it is not a method's, that one.
    """
    here = dict.fromkeys([*values, *allowed_keys(above, custom)])
    nested = {section: values[section] if isinstance(values.get(section), Mapping) else () for section in here}
    below = [
        ".".join((*above, section, name))
        for section, keys in nested.items()
        if section != SHARED and name in (*keys, *allowed_keys((*above, section), custom))
    ]
    allowed = ""
    if not below or RENAMED.get(name) in here:
        words = COMMAND if not above and "studies" in values else ()  # a file's own sections are no words of a command
        near = suggestion(name, [*here, *words], "".join(f"{section}." for section in above))
        if near or not above:
            return near
        sections = (section for section in allowed_keys((), custom) if section != SHARED)
        below = [f"{section}.{name}" for section in sections if name in allowed_keys((section,), custom)]
        own = net_keys(values.get("name")) if above == ("net",) else []
        allowed = f" (allowed: {', '.join(own or here)})"
    below = [key for key in below if key.split(".")[0] in REQUIRED] or below
    listed = " or ".join(below) if len(below) <= MANY else f"{SHARED}.{name}"
    return f"{f'; did you mean {listed}?' if below else ''}{allowed}"


def _read_entries(folder: Path) -> dict[str, Any]:
    """Return the contents of a folder's YAML files by study; a study may be in one file only."""
    entries: dict[str, Any] = {}
    files: dict[str, Path] = {}
    for path in sorted(folder.glob("*.yaml")):
        for name, entry in read_mapping(path, "studies").items():
            if not re.fullmatch(r"\w+", str(name)):
                raise InputError(f"{path}: {name!r}: a study's name has only letters, digits and _")
            if there := files.get(str(name).casefold()):  # a study's folder is named so
                raise InputError(
                    f"{path}: {name} is also in {there}{', but for upper and lower case' * (name not in entries)}"
                )
            entries[str(name)], files[str(name).casefold()] = entry, path
    return entries


def _claims_and_gates(study: str, entry: Any) -> dict[str, Any]:
    """Return a study's entry in claims/: a list of claims, or a section with the keys in CLAIMED."""
    if not isinstance(entry, Mapping):
        return {"claims": entry}
    for key in entry:
        if key not in CLAIMED:
            raise InputError(f"claims: {study}.{key}: no such key (allowed: {', '.join(CLAIMED)})")
    return dict(entry)
