#compdef lockkeeper
# Completion for zsh: lockkeeper itself returns the possible words.

_lockkeeper() {
    local -a answer offers
    local offer tab=$'\t'
    answer=("${(@f)$("${(Q)words[1]}" __complete "${(@Q)words[2,CURRENT]}" 2> /dev/null)}")
    case $answer[1] in
        command\ *)
            local -i before=$(( ${answer[1]#command } + 1 ))
            shift $before words
            (( CURRENT -= before ))
            _normal
            ;;
        files)
            _files
            ;;
        words)
            for offer in "${(@)answer[2,-1]}"; do
                offers+=("${${offer%%$tab*}//:/\\:}:${offer#*$tab}")
            done
            _describe lockkeeper offers
            ;;
    esac
}

if [[ $funcstack[1] == _lockkeeper ]]; then
    _lockkeeper "$@"
else
    compdef _lockkeeper lockkeeper
fi
