# Completion for bash: lockkeeper itself returns the possible words.

_lockkeeper() {
    local line=${COMP_LINE:0:COMP_POINT} directive= offer typed
    local -a words offers=()
    COMPREPLY=()
    # Not COMP_WORDS, which splits a name such as orders:42 into three words.
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    typed=${words[${#words[@]} - 1]}

    while IFS= read -r offer; do
        if [[ -z $directive ]]; then directive=$offer; else offers+=("${offer%%$'\t'*}"); fi
    done < <("${words[0]}" __complete "${words[@]:1}" 2> /dev/null)

    case $directive in
        command\ *)
            local first=0
            while ((first < COMP_CWORD)) && [[ ${COMP_WORDS[first]} != -- ]]; do
                first=$((first + 1))
            done
            # For bash the dashes may be part of a quoted word.
            ((first < COMP_CWORD)) || return
            first=$((first + 1))
            if declare -F _command_offset > /dev/null; then
                _command_offset "$first"
            elif ((COMP_CWORD == first)); then
                while IFS= read -r offer; do offers+=("$offer"); done < <(compgen -c -- "$typed")
                COMPREPLY=("${offers[@]}")
            else
                compopt -o default
            fi
            return
            ;;
        files)
            compopt -o default
            return
            ;;
    esac

    # Readline replaces only the text after the last separator, and an @ itself.
    local kept= breaks=${COMP_WORDBREAKS//[^:=@]/}
    if [[ -n $breaks && $typed == *[$breaks]* ]]; then
        kept=${typed%"${typed##*[$breaks]}"}
        kept=${kept%@}
    fi
    for offer in "${offers[@]}"; do COMPREPLY+=("${offer#"$kept"}"); done
}

complete -F _lockkeeper lockkeeper
